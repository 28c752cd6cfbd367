"""Make the two passes of the cluster kernel over a thread's part of a row.

    first pass    the sum of this warp's own values and of their squared deviations, to the exchange buffer
    second pass   normalise and store, once the row's sums are known

Registers keep the row, or each pass loads it from shared memory again (`Slices.kept`). In registers the vectors lie
`hop` elements apart: a vector's width, or 0 if every vector uses the same registers.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, commit_copies, copy_async, cuda, store_vector_from, wait_copies
from normlab.kernels.forward.clusters.fetch import parameter_loader, vector_taker, writer_chooser
from normlab.kernels.forward.layouts import Slices
from normlab.stages.grouped import group_size
from normlab.stages.output import vector_normaliser
from normlab.stages.row_group import leave
from normlab.stages.warp import warp_sum_butterfly


@cache
def first_pass(slices: Slices) -> Any:
    """Return the device function `pass_1(values, memory, x, share, phase, mean)`."""
    thread_map, warps = slices.thread_map, slices.warps
    vectors, width, span, whole = thread_map.vectors, thread_map.width, thread_map.span, thread_map.whole
    hop = width if slices.kept else 0
    take, size = vector_taker(slices), group_size(thread_map, slices.blocks)

    @cuda.jit(device=True)
    def pass_1(values, memory, x, share, phase, mean):
        exchange, n2 = memory.exchange, x.shape[1]
        # The mean of this warp's values; RMSNorm has none, and its squares are of the values.
        center = cast(0, exchange)
        if mean is not None:
            total = cast(0, exchange)
            for v in range(vectors):
                if whole or share.first + v * span < n2:
                    take(values, memory, share, v, x)
                    for k in range(width):
                        total += values[v * hop + k]
            total = warp_sum_butterfly(total)
            values_here = size(n2, share.rank * warps + share.warp)
            center = total / cast(max(values_here, 1), exchange)  # max: a warp past the row's end has no values
            leave(exchange, phase, 0, 0, share.warp, total)
        # The squares of deviations from the warp's own mean; the merge adds those between the warps.
        square_sum = cast(0, exchange)
        for v in range(vectors):
            if whole or share.first + v * span < n2:
                take(values, memory, share, v, x)
                for k in range(width):
                    deviation = values[v * hop + k] - center
                    square_sum += deviation * deviation
        leave(exchange, phase, 0, 1, share.warp, warp_sum_butterfly(square_sum))

    return pass_1


@cache
def second_pass(slices: Slices, dtype: Any) -> Any:
    """Return the device function `pass_2(values, memory, x, weight, bias, output, share, row)`.

    If registers do not keep the row, it starts to fetch the next one, vector by vector.
    """
    thread_map, stretch, beside, kept = slices.thread_map, slices.stretch, slices.beside, slices.kept
    vectors, width, span, whole = thread_map.vectors, thread_map.width, thread_map.span, thread_map.whole
    hop = width if kept else 0
    # Groups in flight when the parameters must be there: the next row's, started before them only if the row is kept.
    next_row = int(kept)
    take, writes = vector_taker(slices), writer_chooser(slices.readers)
    load_parameters, normalise_vector = parameter_loader(slices), vector_normaliser(width)

    @cuda.jit(device=True)
    def pass_2(values, memory, x, weight, bias, output, share, row):
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        if beside:
            wait_copies(next_row)  # in the first turn for the parameters; later they are there already
        for v in range(vectors):
            column = share.first + v * span
            if whole or column < x.shape[1]:
                take(values, memory, share, v, x)
                if not kept and row.following < x.shape[0]:  # last use of this slot: fetch the next row's vector
                    copy_async(memory.held, share.offset + v * stretch, x, (row.following, column), width)
                if writes(share.reader, v):
                    load_parameters(gammas, betas, memory, weight, bias, share, v)
                    normalise_vector(values, v * hop, gammas, betas, weight, bias, row.center, row.scale)
                    store_vector_from(output, (row.number, column), values, v * hop, width)
        if not kept:
            commit_copies()  # the next row's group

    return pass_2
