"""Make the two passes of the cluster kernel over a thread's part of a row.

    first pass    the sum of this warp's own values and of their squared deviations, to the exchange buffer
    second pass   normalise and store, once the row's sums are known

If `ClusterLayout.kept`, registers hold all vectors of the thread, a vector's width apart. Otherwise each pass loads one
vector after another from shared memory into the same registers. So vector v begins at v * register_stride, where
register_stride is the width, or 0.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, commit_copies, cuda, wait_copies
from normlab.kernels.forward.clusters import edges
from normlab.kernels.forward.clusters.fetch import parameter_loader, vector_taker, writer_chooser
from normlab.kernels.forward.layouts import ClusterLayout
from normlab.stages.grouped import group_size
from normlab.stages.output import vector_normaliser
from normlab.stages.row_group import leave
from normlab.stages.warp import warp_sum_butterfly


@cache
def first_pass(layout: ClusterLayout, dtype: Any) -> Any:
    """Return the device function `pass_1(values, memory, x, share, place, phase, mean)`.

    It writes this warp's sum and sum of squares to the exchange buffer. mean: None for RMSNorm.
    """
    width, warps = layout.thread_map.width, layout.warps
    register_stride = width if layout.kept else 0
    take, size = vector_taker(layout), group_size(layout.thread_map, layout.blocks, layout.alignments > 0)
    has, fill = edges.looker(layout), edges.neighbours_filler(layout)

    @cuda.jit(device=True)
    def add_vector(v, values, memory, x, share, place, sums):
        if has(v, place, x.shape[1]):
            take(values, memory, share, v, x)
            fill(v, values, v * register_stride, place, cast(0, sums))
            for k in range(width):
                sums[0] += values[v * register_stride + k]

    @cuda.jit(device=True)
    def add_squares(v, values, memory, x, share, place, sums, center):
        if has(v, place, x.shape[1]):
            take(values, memory, share, v, x)
            fill(v, values, v * register_stride, place, center)
            for k in range(width):
                deviation = values[v * register_stride + k] - center
                sums[0] += deviation * deviation

    add_all, add_all_squares = edges.for_each_vector(layout, add_vector), edges.for_each_vector(layout, add_squares)

    @cuda.jit(device=True)
    def pass_1(values, memory, x, share, place, phase, mean):
        exchange = memory.exchange
        sums = cuda.local.array(1, dtype)
        # The mean of this warp's values; RMSNorm has none, and its squares are of the values.
        center = cast(0, exchange)
        if mean is not None:
            sums[0] = cast(0, exchange)
            add_all(0, values, memory, x, share, place, sums)
            total = warp_sum_butterfly(sums[0])
            values_here = size(place.extent, share.rank * warps + share.warp)  # the warp's number among the row's warps
            center = total / cast(max(values_here, 1), exchange)  # max: a warp past the row's end has no values
            leave(exchange, phase, 0, 0, share.warp, total)
        # The squares of deviations from the warp's own mean; the merge adds those between the warps.
        sums[0] = cast(0, exchange)
        add_all_squares(0, values, memory, x, share, place, sums, center)
        leave(exchange, phase, 0, 1, share.warp, warp_sum_butterfly(sums[0]))

    return pass_1


@cache
def second_pass(layout: ClusterLayout, dtype: Any) -> Any:
    """Return the device function `pass_2(values, memory, x, weight, bias, output, share, place, row)`.

    It stores this reader's part of the output. If registers do not keep the row, it starts to fetch the next row,
    vector by vector, as soon as a vector has been loaded for the last time.
    """
    width, parameters_held, kept = layout.thread_map.width, layout.parameters_held, layout.kept
    register_stride = width if kept else 0
    # Groups that may be in flight when the parameters must be there: the next row's, if `take_row` has started it.
    next_row = int(kept)
    take, writes, has = vector_taker(layout), writer_chooser(layout.readers), edges.looker(layout)
    load_parameters, normalise_vector = parameter_loader(layout), vector_normaliser(width)
    fetch, place_of, store_vector = edges.vector_fetcher(layout), edges.placer(layout), edges.vector_storer(layout)
    anywhere = layout.alignments > 0

    @cuda.jit(device=True)
    def write_vector(v, values, memory, x, weight, bias, output, share, place, ahead, row):
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        if has(v, place, x.shape[1]):
            take(values, memory, share, v, x)
            if not kept and row.following < x.shape[0]:  # last use of this slot: fetch the next row's vector
                fetch(v, memory, x, share, ahead, row.following)
            if writes(share.reader, v):
                load_parameters(gammas, betas, memory, weight, bias, share, v)
                normalise_vector(values, v * register_stride, gammas, betas, weight, bias, row.center, row.scale)
                store_vector(v, values, v * register_stride, output, place, row.number)
        elif anywhere and not kept and row.following < x.shape[0]:  # it begins elsewhere and may have this vector
            fetch(v, memory, x, share, ahead, row.following)

    write_all = edges.for_each_vector(layout, write_vector)

    @cuda.jit(device=True)
    def pass_2(values, memory, x, weight, bias, output, share, place, row):
        if parameters_held:
            wait_copies(next_row)  # for the parameters, which are in flight only in the first turn
        ahead = place_of(x, share, row.following)
        write_all(0, values, memory, x, weight, bias, output, share, place, ahead, row)
        if not kept:
            commit_copies()  # the next row's group

    return pass_2
