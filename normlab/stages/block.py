"""Reduce the warps' values to the block's through shared memory. All threads of the block call a stage together.

The stages halve the warps as apex does: the upper half of the warps writes, the lower half reads and merges, until one
warp is left. That warp writes the result and all threads read it. Each warp contributes the value of its lane 0. The
block size is a multiple of 32, with any number of warps.

`buffer` is shared memory of the accumulator's dtype, at least (rows, warps). A stage begins with a barrier, because a
thread may still read the previous result from `buffer`; a kernel may therefore call it in a loop with one buffer.
"""

from normlab.engine import cuda
from normlab.stages.moments import chan_merge
from normlab.stages.warp import lane_index, thread_index, warp_count, warp_index


@cuda.jit(device=True)
def block_moments(mean, m2, count, buffer):
    """Merge the moments of the block's warps (apex: the inter-warp reduction of cuWelfordMuSigma2).

    Args: mean, m2, count: the warp's moments, in its lane 0. buffer: shared, (3, warps). Returns: the block's
    (mean, m2, count), in every thread.
    """
    lane = lane_index()
    warp = warp_index()
    active = warp_count()
    cuda.syncthreads()  # all threads have read the previous result from the buffer
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
    """Add up two sums over the block's warps (apex: the inter-warp reduction of cuComputeGradInput).

    The stage adds up two sums together, because each barrier costs the same for two sums as for one.

    Args: first, second: the warp's sums, in its lane 0. buffer: shared, (2, warps). Returns: the block's two sums, in
    every thread.
    """
    lane = lane_index()
    warp = warp_index()
    active = warp_count()
    cuda.syncthreads()  # all threads have read the previous result from the buffer
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
    """Add up one sum over the block's warps: `block_sums`, whose second result is dropped.

    Args: value: the warp's sum, in its lane 0. buffer: shared, (2, warps). Returns: the block's sum, in every thread.
    """
    return block_sums(value, value, buffer)[0]


@cuda.jit(device=True)
def block_tree_sum(value, buffer):
    """Add up one value per thread by a tree in shared memory, without shuffles. The thread count is a power of two.

    Args: value: the thread's. buffer: shared, (threads,). Returns: the block's sum, in every thread.
    """
    thread = thread_index()
    cuda.syncthreads()  # all threads have read the previous result from the buffer
    buffer[thread] = value
    half = (cuda.blockDim.x * cuda.blockDim.y) >> 1
    while half > 0:
        cuda.syncthreads()  # the previous round's sums are in shared memory before they are read
        if thread < half:
            buffer[thread] += buffer[thread + half]
        half >>= 1
    cuda.syncthreads()  # the total is in shared memory before any thread reads it
    return buffer[0]
