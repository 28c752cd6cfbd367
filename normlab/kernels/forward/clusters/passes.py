"""Make the two passes of the cluster kernel over a thread's part of a row.

    first pass    the sum of this warp's own values and of their squared deviations, to the exchange buffer
    second pass   normalise and store, once the row's sums are known

If `ClusterLayout.kept`, registers hold all vectors of the thread, a vector's width apart. Otherwise each pass loads one
vector after another from shared memory into the same registers. So vector v begins at v * register_stride, where
register_stride is the width, or 0.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, commit_copies, copy_async, cuda, store_vector_from, wait_copies
from normlab.kernels.forward.clusters.fetch import parameter_loader, vector_taker, writer_chooser
from normlab.kernels.forward.layouts import ClusterLayout
from normlab.stages.grouped import group_size
from normlab.stages.output import vector_normaliser
from normlab.stages.row_group import leave
from normlab.stages.warp import warp_sum_butterfly


@cache
def first_pass(layout: ClusterLayout) -> Any:
    """Return the device function `pass_1(values, memory, x, share, phase, mean)`.

    It writes this warp's sum and sum of squares to the exchange buffer. mean: None for RMSNorm.
    """
    thread_map, warps = layout.thread_map, layout.warps
    vectors, width, span, whole = thread_map.loop
    register_stride = width if layout.kept else 0
    take, size = vector_taker(layout), group_size(thread_map, layout.blocks)

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
                        total += values[v * register_stride + k]
            total = warp_sum_butterfly(total)
            values_here = size(n2, share.rank * warps + share.warp)  # the warp's number among the row's warps
            center = total / cast(max(values_here, 1), exchange)  # max: a warp past the row's end has no values
            leave(exchange, phase, 0, 0, share.warp, total)
        # The squares of deviations from the warp's own mean; the merge adds those between the warps.
        square_sum = cast(0, exchange)
        for v in range(vectors):
            if whole or share.first + v * span < n2:
                take(values, memory, share, v, x)
                for k in range(width):
                    deviation = values[v * register_stride + k] - center
                    square_sum += deviation * deviation
        leave(exchange, phase, 0, 1, share.warp, warp_sum_butterfly(square_sum))

    return pass_1


@cache
def second_pass(layout: ClusterLayout, dtype: Any) -> Any:
    """Return the device function `pass_2(values, memory, x, weight, bias, output, share, row)`.

    It stores this reader's part of the output. If registers do not keep the row, it starts to fetch the next row,
    vector by vector, as soon as a vector has been loaded for the last time.
    """
    thread_map, block_span, parameters_held, kept = (
        layout.thread_map,
        layout.block_span,
        layout.parameters_held,
        layout.kept,
    )
    vectors, width, span, whole = thread_map.loop
    register_stride = width if kept else 0
    # Groups that may be in flight when the parameters must be there: the next row's, if `take_row` has started it.
    next_row = int(kept)
    take, writes = vector_taker(layout), writer_chooser(layout.readers)
    load_parameters, normalise_vector = parameter_loader(layout), vector_normaliser(width)

    @cuda.jit(device=True)
    def pass_2(values, memory, x, weight, bias, output, share, row):
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        if parameters_held:
            wait_copies(next_row)  # for the parameters, which are in flight only in the first turn
        for v in range(vectors):
            column = share.first + v * span
            if whole or column < x.shape[1]:
                take(values, memory, share, v, x)
                if not kept and row.following < x.shape[0]:  # last use of this slot: fetch the next row's vector
                    copy_async(memory.held, share.offset + v * block_span, x, (row.following, column), width)
                if writes(share.reader, v):
                    load_parameters(gammas, betas, memory, weight, bias, share, v)
                    normalise_vector(values, v * register_stride, gammas, betas, weight, bias, row.center, row.scale)
                    store_vector_from(output, (row.number, column), values, v * register_stride, width)
        if not kept:
            commit_copies()  # the next row's group

    return pass_2
