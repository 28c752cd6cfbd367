"""Build the cluster kernel for a layout; `step_7_clusters` says what it does and why."""

from functools import cache
from typing import Any

from normlab.engine import cluster_arrive_shared, cluster_wait, cuda, int32, same_lengths, store, wait_copies
from normlab.kernels.forward.clusters import edges
from normlab.kernels.forward.clusters.fetch import parameter_fetcher, row_fetcher, row_taker, sharer
from normlab.kernels.forward.clusters.operands import Memory, Row
from normlab.kernels.forward.clusters.passes import first_pass, second_pass
from normlab.kernels.forward.layouts import ClusterLayout
from normlab.kernels.lengths import LENGTHS
from normlab.stages.ahead import BITS
from normlab.stages.grouped import group_merger


@cache
def build(dtype: Any, layout: ClusterLayout) -> Any:
    """Return the kernel for an accumulator dtype and a layout."""
    thread_map, cluster, warps = layout.thread_map, layout.cluster, layout.warps
    bits, parameter_bits = BITS[layout.itemsize], BITS[layout.parameter_bytes or layout.itemsize]
    width, words_kept = thread_map.width, thread_map.elements * layout.itemsize // 4 if layout.kept else 1
    share_of, fetch_row, fetch_parameters = sharer(layout), row_fetcher(layout), parameter_fetcher(layout)
    take_row, pass_1, pass_2 = row_taker(layout), first_pass(layout, dtype), second_pass(layout, dtype)
    merge = group_merger(thread_map, layout.blocks, layout.spread, layout.anywhere)
    place_of, parameters_held, together = edges.placer(layout), layout.parameters_held, cluster * layout.readers
    next_row = int(layout.kept)  # groups in flight when the parameters must be there: `take_row` has started the row's

    @same_lengths(LENGTHS)
    @cuda.jit(launch_bounds=(layout.threads, layout.resident))
    def forward_clusters(x, weight, bias, eps, factor, output, mean, invvar):
        # Prologue: which columns of which rows this thread has.
        # (phases, rows, sums, warps). Two phases: a slot is free again only after the next row's barrier.
        exchange = cuda.shared.array((2, 1, 2, warps), dtype)
        held = cuda.shared.array(0, bits, alignment=16)  # the block's part of the row
        parameters = cuda.shared.array(0, parameter_bits, alignment=16)  # the same memory, in the parameters' bits
        words = cuda.shared.array(0, int32, alignment=16)  # and as words
        kept = cuda.local.array(words_kept, int32)
        values = cuda.local.array(width, dtype)  # one vector at a time
        memory = Memory(held, parameters, words, kept, exchange)
        n1, n2 = x.shape
        row, share = cuda.blockIdx.x // together, share_of(weight)

        # Fetch the first row, then the parameters: the first pass needs only the row.
        fetch_row(memory, x, share, row)
        fetch_parameters(memory, weight, bias, share, place_of(x, share, row), n2)

        phase = 0
        while row < n1:
            # Wait for this row. If registers keep it, start to fetch the next row now.
            following, place = row + share.stride, place_of(x, share, row)
            take_row(memory, x, share, place, following)

            # First pass: the mean and then the squares of this warp's own values.
            pass_1(values, memory, x, share, place, phase, mean)
            if parameters_held:  # Before the barrier, because neighbours may read the thread's part of the parameters.
                wait_copies(next_row)  # They are in flight only in the first turn.

            # Exchange: one barrier for both sums, then every warp merges the sums of all warps of the row.
            if cluster > 1:
                cluster_arrive_shared()  # waits only for stores to shared memory: the output's may still be in flight
                cluster_wait()  # all warps of the cluster have written their sums before a warp reads them
            else:
                cuda.syncthreads()  # all warps of the block have written their sums before a warp reads them
            center, square_sum = merge(exchange, phase, 0, place.extent, factor, mean)
            phase = 1 - phase  # other warps may still read these sums: the next row's go to the other half
            scale = cuda.libdevice.rsqrtf(square_sum * factor + eps)  # factor: 1 / n2

            # Second pass: normalise and store. If the row is not kept, start to fetch the next row vector by vector.
            pass_2(values, memory, x, weight, bias, output, share, place, Row(row, following, center, scale))
            if cuda.threadIdx.x == 0 and share.rank == 0 and share.reader == 0:  # one thread per row stores them
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)
            row = following

        # Epilogue.
        if cluster > 1:
            cluster_arrive_shared()
            cluster_wait()  # a block's shared memory must live until the other blocks have read its sums

    return forward_clusters
