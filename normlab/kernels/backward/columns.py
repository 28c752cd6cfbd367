"""Add up the columns' sums at the end of the pipelined backward.

Each block adds up its row groups' partial sums (`finish`). A launch of one cluster has the gradient then; with several
clusters each writes a row of partial sums, which a second kernel adds up. A launch of one eight-block cluster with rows
in each block adds up its blocks through distributed shared memory (`gather`): each block reads some columns of all.

The sums lie in the memory of the pipeline stages, which are no longer used: first the sums of all row groups except
the first, then, for `gather`, the block's sums for either gradient.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda, load_from_block, store, store_vector_from
from normlab.kernels.backward.kind import Kind
from normlab.kernels.backward.parameters import readers
from normlab.kernels.backward.ring import Layout

GATHERED = 8  # blocks: a cluster may have as many on every GPU that has clusters


def gathered_at(layout: Layout, number: int) -> int:
    """Return the offset of a block's sums for gradient `number` (0 or 1) in shared memory, in accumulators."""
    return (layout.rows - 1 + number) * layout.thread_map.columns


@cache
def finisher(layout: Layout, kind: Kind, dtype: Any, divide: bool, gathered: bool, number: int) -> Any:
    """Return the device function `finish(…)`, which adds up the block's sums for gradient `number`.

    divide: divide the sums by the clamped gamma, which the first pass left out. gathered: leave them for `gather`.
    """
    thread_map, rows = layout.thread_map, layout.rows
    threads, vectors, width, whole = thread_map
    elements, columns, span = thread_map.elements, thread_map.columns, thread_map.span
    _, load_clamped, _, _ = readers(layout, kind)
    leave_sums = leaver(gathered_at(layout, number), width) if gathered else writer(width, kind.together)

    @cuda.jit(device=True)
    def finish(sums, mine, parameters, weight, eps, gradient, partials, cluster, group, thread, offset, first):
        totals = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        if rows > 1 or gathered:
            cuda.syncthreads()  # all threads have read this memory: pipeline stages, or the other gradient's sums
        if rows > 1:
            if group > 0:
                for k in range(elements):
                    sums[(group - 1) * columns + k * threads + thread] = mine[k]
            cuda.syncthreads()  # all row groups' sums are in shared memory before the first one adds them up
        if group == 0:
            # A loop of its own. Inside the loop over vectors it kept the compiler from unrolling that: `mine` lay in
            # local memory from the first row on (192 bytes per thread at n2 = 384 in bfloat16), or all loads came
            # first (255 registers at n2 = 768, which now takes 142).
            for other in range(rows - 1):
                for k in range(elements):
                    mine[k] += sums[other * columns + k * threads + thread]
            # Round once and store, vector by vector.
            for v in range(vectors):
                column = first + v * span
                if whole or column < gradient.shape[0]:
                    if divide:
                        load_clamped(gammas, parameters, v, offset, weight, eps)
                    for k in range(width):
                        totals[k] = mine[v * width + k] / gammas[k] if divide else mine[v * width + k]
                    leave_sums(totals, sums, gradient, partials, cluster, column)

    return finish


@cache
def leaver(start: int, width: int) -> Any:
    """Return the device function `leave_sums(…)`: store a vector of the block's sums where other blocks read them."""

    @cuda.jit(device=True)
    def leave_sums(totals, sums, gradient, partials, cluster, column):
        store_vector_from(sums, start + column, totals, 0, width)

    return leave_sums


@cache
def writer(width: int, together: int) -> Any:
    """Return the device function `write_sums(…)`, which stores a vector of a cluster's sums.

    They go to the cluster's row of partial sums, `partials`, or are the gradient if there is one cluster.
    """

    @cuda.jit(device=True)
    def write_sums(totals, sums, gradient, partials, cluster, column):
        if partials.shape[0] > 1:
            store_vector_from(partials, (cluster, column), totals, 0, width)
        else:  # the gradient may allow narrower stores than the rows: `together` elements
            for k in range(0, width, together):
                store_vector_from(gradient, column + k, totals, k, together)

    return write_sums


@cache
def gatherer(layout: Layout, dtype: Any, number: int) -> Any:
    """Return the device function `gather(sums, gradient)`: add up this block's columns over all blocks, and store."""
    threads, start = layout.threads, gathered_at(layout, number)

    @cuda.jit(device=True)
    def gather(sums, gradient):
        values = cuda.local.array(GATHERED, dtype)
        column = cuda.blockIdx.x * threads + cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        while column < gradient.shape[0]:
            for rank in range(GATHERED):  # all eight loads are in flight before the first addition waits
                values[rank] = load_from_block(sums, start + column, rank)
            # blocks are added in the order of their rank: the same bits whichever block adds
            total = values[0]
            for rank in range(1, GATHERED):
                total += values[rank]
            store(gradient, column, total)
            column += GATHERED * threads

    return gather
