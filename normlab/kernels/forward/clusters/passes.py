"""Make the two passes of the cluster kernel over a thread's part of a row.

    first pass    the sum of this warp's own values and of their squared deviations, to the exchange buffer
    second pass   normalise and store, once the row's sums are known

Each pass takes one vector after another: from registers, which hold the thread's part of the row as it lies in memory,
if `ClusterLayout.kept`; else from shared memory again. Where a row may begin in the middle of a vector, a pass's code
for one vector is built twice: with conditions for threads at the row's ends, and without for all others (`inner`,
`edges.for_each_vector`). `operands` says what is in memory, share, place and row.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, commit_copies, cuda, int32
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

    It writes this warp's sum s_w and sum of squares q_w to the exchange buffer, as `stages.grouped` merges them.
    values: local, one vector. phase: which half of the exchange buffer this row has. mean: None for RMSNorm.
    """
    width, warps = layout.thread_map.width, layout.warps
    take, size = vector_taker(layout), group_size(layout.thread_map, layout.blocks, layout.anywhere)

    def adder(squares: bool) -> Any:
        def of_vectors(inner: bool) -> Any:
            has, fill = edges.has_vector(layout, inner), edges.neighbours_filler(layout, inner)

            @cuda.jit(device=True)
            def add_vector(v, place, values, memory, x, share, sums, center):
                if has(v, place, x.shape[1]):
                    take(values, memory, share, v, x)
                    fill(v, values, place, center)  # elements of the neighbouring rows: they add 0
                    for k in range(width):
                        if squares:
                            deviation = values[k] - center
                            sums[0] += deviation * deviation
                        else:
                            sums[0] += values[k]  # center is 0 here

            return add_vector

        return edges.for_each_vector(layout, of_vectors)

    add_values, add_squares = adder(squares=False), adder(squares=True)

    @cuda.jit(device=True)
    def pass_1(values, memory, x, share, place, phase, mean):
        exchange = memory.exchange
        sums = cuda.local.array(1, dtype)  # an array, because the steps cannot change a number of their caller
        center = cast(0, exchange)  # RMSNorm: the squares are of the values themselves
        if mean is not None:
            sums[0] = cast(0, exchange)
            add_values(place, values, memory, x, share, sums, center)
            total = warp_sum_butterfly(sums[0])
            values_here = size(place.extent, share.rank * warps + share.warp)  # the warp's number among the row's warps
            # max: a warp past the row's end has no values
            center = total / cast(int32(max(values_here, 1)), exchange)
            leave(exchange, phase, 0, 0, share.warp, total)
        # LayerNorm: of the deviations from the warp's own mean. The merge adds the squares between the warps.
        sums[0] = cast(0, exchange)
        add_squares(place, values, memory, x, share, sums, center)
        leave(exchange, phase, 0, 1, share.warp, warp_sum_butterfly(sums[0]))

    return pass_1


@cache
def second_pass(layout: ClusterLayout, dtype: Any) -> Any:
    """Return the device function `pass_2(values, memory, x, weight, bias, output, share, place, row)`.

    It stores the part of the output that this reader of the row writes (`fetch.writer_chooser`). If registers do not
    keep the row, it starts to fetch the next row, vector by vector, as soon as a vector has been loaded for the last
    time.
    """
    width, kept, anywhere = layout.thread_map.width, layout.kept, layout.anywhere
    take, writes, place_of = vector_taker(layout), writer_chooser(layout.readers), edges.placer(layout)
    load_parameters, normalise_vector = parameter_loader(layout), vector_normaliser(width)
    fetch = edges.vector_fetcher(layout)

    def writer(inner: bool) -> Any:
        has, store_vector = edges.has_vector(layout, inner), edges.vector_storer(layout, inner)

        @cuda.jit(device=True)
        def write_vector(v, place, values, memory, x, weight, bias, output, share, ahead, row):
            # ahead: the thread's place in the next row
            gammas = cuda.local.array(width, dtype)
            betas = cuda.local.array(width, dtype)
            if has(v, place, x.shape[1]):
                take(values, memory, share, v, x)
                if not kept and row.following < x.shape[0]:  # the slot is free now
                    fetch(v, memory, x, share, ahead, row.following)
                if writes(share.reader, v):
                    load_parameters(gammas, betas, memory, weight, bias, share, place, v)
                    normalise_vector(values, 0, gammas, betas, weight, bias, row.center, row.scale)
                    store_vector(v, values, output, place, row.number)
            elif anywhere and not kept and row.following < x.shape[0]:
                # A row that begins elsewhere in a vector may have one vector more than this row.
                fetch(v, memory, x, share, ahead, row.following)

        return write_vector

    write_all = edges.for_each_vector(layout, writer)

    @cuda.jit(device=True)
    def pass_2(values, memory, x, weight, bias, output, share, place, row):
        ahead = place_of(x, share, row.following)
        write_all(place, values, memory, x, weight, bias, output, share, ahead, row)
        if not kept:
            commit_copies()  # the next row's group

    return pass_2
