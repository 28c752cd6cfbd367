"""Build the cluster kernel for a layout of slices; `step_7_clusters` says what it does and why."""

from functools import cache
from typing import Any

from normlab.engine import cluster_arrive_shared, cluster_wait, cuda, store
from normlab.kernels.forward.clusters.fetch import parameter_fetcher, row_fetcher, row_taker, sharer
from normlab.kernels.forward.clusters.operands import Memory, Row
from normlab.kernels.forward.clusters.passes import first_pass, second_pass
from normlab.kernels.forward.layouts import Slices
from normlab.stages.ahead import BITS
from normlab.stages.grouped import group_merger


@cache
def build(dtype: Any, slices: Slices) -> Any:
    """Return the kernel for an accumulator dtype and a layout."""
    thread_map, cluster, readers, warps = slices.thread_map, slices.cluster, slices.readers, slices.warps
    bits, parameter_bits = BITS[slices.itemsize], BITS[slices.parameter_bytes or slices.itemsize]
    elements = thread_map.elements if slices.kept else thread_map.width  # a thread's values in registers
    share_of, fetch_row, fetch_parameters = sharer(slices), row_fetcher(slices), parameter_fetcher(slices)
    take_row, pass_1, pass_2 = row_taker(slices), first_pass(slices), second_pass(slices, dtype)
    merge = group_merger(thread_map, slices.blocks, slices.spread)

    @cuda.jit(launch_bounds=(slices.threads, slices.resident))
    def forward_clusters(x, weight, bias, eps, factor, output, mean, invvar):
        # Prologue: which columns of which rows this thread has.
        exchange = cuda.shared.array((2, 1, 2, warps), dtype)  # two phases: see `stages.row_group`
        held = cuda.shared.array(0, bits, alignment=16)  # the block's part of the row
        parameters = cuda.shared.array(0, parameter_bits, alignment=16)  # the same memory, in the parameters' bits
        values = cuda.local.array(elements, dtype)
        memory = Memory(held, parameters, exchange)
        n1, n2 = x.shape
        share = share_of(weight)
        row = cuda.blockIdx.x // (cluster * readers)

        # Fetch the first row, then the parameters: the first pass needs only the row.
        fetch_row(memory, x, share, row)
        fetch_parameters(memory, weight, bias, share, n2)

        phase = 0
        while row < n1:
            # Wait for this row. If registers keep it, start to fetch the next row now.
            following = row + share.stride
            take_row(values, memory, x, share, following)

            # First pass: the mean and then the squares of this warp's own values.
            pass_1(values, memory, x, share, phase, mean)

            # Exchange: one barrier for both sums, then every warp merges the sums of all warps of the row.
            if cluster > 1:
                cluster_arrive_shared()  # waits only for stores to shared memory: the output's may still be in flight
                cluster_wait()  # all warps of the cluster have written their sums before a warp reads them
            else:
                cuda.syncthreads()  # all warps of the block have written their sums before a warp reads them
            center, square_sum = merge(exchange, phase, 0, n2, factor, mean)
            phase = 1 - phase  # other warps may still read these sums: the next row's go to the other half
            scale = cuda.libdevice.rsqrtf(square_sum * factor + eps)

            # Second pass: normalise and store. If the row is not kept, start to fetch the next row vector by vector.
            pass_2(values, memory, x, weight, bias, output, share, Row(row, following, center, scale))
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
