"""What the threads of a block know of the same channels, put together: for the kernels of `columns`.

Thread (x, y) of a block (across, down) knows something of the `width` channels of all threads (x, ·). By halving: the
upper half of the y gives what it knows to the lower one, until y = 0 has all. Called by all threads of the block; the
boards may be used again behind it.
"""

from functools import cache

from normlab.engine import cuda, float32
from normlab.stages.moments import chan_merge_share


@cache
def moments_merger(width, across):
    """The device function `merge_moments(means, m2s, count, boards, counts)`; returns the count.

    means, m2s: local, (width,); count: of each of the channels. boards: shared, (2, width, threads / 2); counts:
    shared, (down / 2,). All of the accumulator's dtype.
    """

    @cuda.jit(device=True)
    def merge_moments(means, m2s, count, boards, counts):
        y = cuda.threadIdx.y
        thread = y * across + cuda.threadIdx.x
        half = cuda.blockDim.y >> 1
        while half > 0:
            if half <= y < 2 * half:
                for k in range(width):
                    boards[0, k, thread - half * across] = means[k]
                    boards[1, k, thread - half * across] = m2s[k]
                if cuda.threadIdx.x == 0:
                    counts[y - half] = count
            cuda.syncthreads()  # this round's moments are in shared memory before they are read
            if y < half:
                other = counts[y]
                share = other / max(count + other, float32(1))
                for k in range(width):
                    means[k], m2s[k] = chan_merge_share(
                        means[k], m2s[k], count, boards[0, k, thread], boards[1, k, thread], share
                    )
                count += other
            cuda.syncthreads()  # everybody has read them before the next round's take their place
            half >>= 1
        return count

    return merge_moments


@cache
def sums_merger(width, across):
    """The device function `merge_sums(sums, products, boards)`, of arrays as in `moments_merger`."""

    @cuda.jit(device=True)
    def merge_sums(sums, products, boards):
        y = cuda.threadIdx.y
        thread = y * across + cuda.threadIdx.x
        half = cuda.blockDim.y >> 1
        while half > 0:
            if half <= y < 2 * half:
                for k in range(width):
                    boards[0, k, thread - half * across] = sums[k]
                    boards[1, k, thread - half * across] = products[k]
            cuda.syncthreads()  # this round's sums are in shared memory before they are read
            if y < half:
                for k in range(width):
                    sums[k] += boards[0, k, thread]
                    products[k] += boards[1, k, thread]
            cuda.syncthreads()  # everybody has read them before the next round's take their place
            half >>= 1

    return merge_sums
