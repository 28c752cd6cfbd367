"""Warps to a block, through shared memory. Each stage must be reached by every thread of the block together.

By halving, as apex does it: the upper half of the warps writes, the lower half reads and merges, until one warp is
left, whose result is then handed to all threads. The values that count are those of each warp's lane 0. Block sizes: a
multiple of 32, any number of warps.

`buffer` is shared memory, at least (rows, warps) of the accumulator's dtype. A stage starts with a barrier of its own
where an earlier reader of `buffer` might still be reading, so a kernel may call it in a loop with the same buffer.
"""

from normlab.engine import cuda
from normlab.stages.moments import chan_merge
from normlab.stages.warp import lane_index, thread_index, warp_count, warp_index


@cuda.jit(device=True)
def block_moments(mean, m2, count, buffer):
    """Moments of the whole block from those of its warps (apex: the inter-warp reduction of cuWelfordMuSigma2).

    Args: mean, m2, count: of the caller's warp, in its lane 0. buffer: shared, (3, warps). Returns: (mean, m2, count)
    of the block, in every thread.
    """
    lane = lane_index()
    warp = warp_index()
    active = warp_count()
    cuda.syncthreads()  # every reader of an earlier result is done with the buffer
    while active > 1:
        half = (active + 1) >> 1
        if lane == 0 and half <= warp < active:
            buffer[0, warp - half] = mean
            buffer[1, warp - half] = m2
            buffer[2, warp - half] = count
        cuda.syncthreads()  # the upper half's moments are in shared memory before the lower half reads them
        if lane == 0 and warp < active - half:
            mean, m2, count = chan_merge(mean, m2, count, buffer[0, warp], buffer[1, warp], buffer[2, warp])
        cuda.syncthreads()  # the lower half has read them before the next round overwrites them
        active = half
    if lane == 0 and warp == 0:
        buffer[0, 0] = mean
        buffer[1, 0] = m2
        buffer[2, 0] = count
    cuda.syncthreads()  # the result is in shared memory before any thread reads it
    return buffer[0, 0], buffer[1, 0], buffer[2, 0]


@cuda.jit(device=True)
def block_sums(first, second, buffer):
    """Two sums over the block from those of its warps (apex: the inter-warp reduction of cuComputeGradInput).

    Two at once, because a barrier costs the same for one.

    Args: first, second: the sums of the caller's warp, in its lane 0. buffer: shared, (2, warps). Returns: both sums
    over the block, in every thread.
    """
    lane = lane_index()
    warp = warp_index()
    active = warp_count()
    cuda.syncthreads()  # every reader of an earlier result is done with the buffer
    while active > 1:
        half = (active + 1) >> 1
        if lane == 0 and half <= warp < active:
            buffer[0, warp - half] = first
            buffer[1, warp - half] = second
        cuda.syncthreads()  # the upper half's sums are in shared memory before the lower half reads them
        if lane == 0 and warp < active - half:
            first = first + buffer[0, warp]
            second = second + buffer[1, warp]
        cuda.syncthreads()  # the lower half has read them before the next round overwrites them
        active = half
    if lane == 0 and warp == 0:
        buffer[0, 0] = first
        buffer[1, 0] = second
    cuda.syncthreads()  # the result is in shared memory before any thread reads it
    return buffer[0, 0], buffer[1, 0]


@cuda.jit(device=True)
def block_sum(value, buffer):
    """One sum over the block from those of its warps: `block_sums` where the second sum only rides along.

    Args: value: the sum of the caller's warp, in its lane 0. buffer: shared, (2, warps). Returns: the sum, in every
    thread.
    """
    return block_sums(value, value, buffer)[0]


@cuda.jit(device=True)
def block_tree_sum(value, buffer):
    """One sum over the block by a tree in shared memory alone, before shuffles are known. Threads: a power of two.

    Args: value: of each thread. buffer: shared, (threads,). Returns: the sum, in every thread.
    """
    thread = thread_index()
    cuda.syncthreads()  # every reader of an earlier result is done with the buffer
    buffer[thread] = value
    half = (cuda.blockDim.x * cuda.blockDim.y) >> 1
    while half > 0:
        cuda.syncthreads()  # the previous round's sums are in shared memory before they are read
        if thread < half:
            buffer[thread] += buffer[thread + half]
        half >>= 1
    cuda.syncthreads()  # the total is in shared memory before any thread reads it
    return buffer[0]
