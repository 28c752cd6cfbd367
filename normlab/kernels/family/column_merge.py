"""Merge what the threads of a block, or the blocks of a grid, have found of the same channels, for `columns`.

All threads (x, ·) of a block (across, down) have the same `width` channels. The threads merge by halving y: the upper
half writes to the exchange buffer, the lower half reads and merges, until y = 0 has everything. All threads of the
block call these functions together; afterwards the exchange buffer may be used again.
"""

from functools import cache

from normlab.engine import cuda, float32, load_vector_into
from normlab.stages.moments import chan_merge_share


@cache
def moments_merger(width, across):
    """Return the device function `merge_moments(means, m2s, count, exchange, counts)`, which returns the merged count.

    means, m2s: local, (width,). count: values per channel, the same for all channels of a thread. exchange: shared,
    (2, width, threads / 2). counts: shared, (down / 2,). All have the accumulator's dtype.
    """

    @cuda.jit(device=True)
    def merge_moments(means, m2s, count, exchange, counts):
        y = cuda.threadIdx.y
        thread = y * across + cuda.threadIdx.x
        half = cuda.blockDim.y >> 1
        while half > 0:
            if half <= y < 2 * half:
                for k in range(width):
                    exchange[0, k, thread - half * across] = means[k]
                    exchange[1, k, thread - half * across] = m2s[k]
                if cuda.threadIdx.x == 0:
                    counts[y - half] = count
            cuda.syncthreads()  # this round's moments are in shared memory before they are read
            if y < half:
                other = counts[y]
                share = other / max(count + other, float32(1))  # max: both may be empty
                for k in range(width):
                    means[k], m2s[k] = chan_merge_share(
                        means[k], m2s[k], count, exchange[0, k, thread], exchange[1, k, thread], share
                    )
                count += other
            cuda.syncthreads()  # the lower half has read them before the next round overwrites them
            half >>= 1
        return count

    return merge_moments


@cache
def sums_merger(width, across):
    """Return the device function `merge_sums(sums, products, exchange)`, with arrays as for `moments_merger`."""

    @cuda.jit(device=True)
    def merge_sums(sums, products, exchange):
        y = cuda.threadIdx.y
        thread = y * across + cuda.threadIdx.x
        half = cuda.blockDim.y >> 1
        while half > 0:
            if half <= y < 2 * half:
                for k in range(width):
                    exchange[0, k, thread - half * across] = sums[k]
                    exchange[1, k, thread - half * across] = products[k]
            cuda.syncthreads()  # this round's sums are in shared memory before they are read
            if y < half:
                for k in range(width):
                    sums[k] += exchange[0, k, thread]
                    products[k] += exchange[1, k, thread]
            cuda.syncthreads()  # the lower half has read them before the next round overwrites them
            half >>= 1

    return merge_sums


@cache
def moments_of_all(width, across, down):
    """Return the device function `merge_parts(pieces, outer, turns, channels, channel, means, m2s, exchange, counts)`.

    It merges the parts' moments of a thread's channels over all `outer` rows; threads with y = 0 get the result.
    pieces: (2, parts · channels): means, sums of squared deviations. A part has `turns` bundles of `down` rows, and its
    share of the rows that are left over.
    """
    merge_moments = moments_merger(width, across)

    @cuda.jit(device=True)
    def merge_parts(pieces, outer, turns, channels, channel, means, m2s, exchange, counts):
        part_means = cuda.local.array(width, float32)
        part_m2s = cuda.local.array(width, float32)
        count = float32(0)
        for k in range(width):
            means[k] = float32(0)
            m2s[k] = float32(0)
        # The threads of a channel take its parts in turn, and then merge through shared memory.
        part, parts = cuda.threadIdx.y, cuda.gridDim.x
        left = outer - parts * turns * down
        while part < parts and channel < channels:
            load_vector_into(part_means, 0, pieces, (0, part * channels + channel), width)
            load_vector_into(part_m2s, 0, pieces, (1, part * channels + channel), width)
            # counts are computed, not exchanged: the rows left over go to the first parts
            size = float32(turns * down + min(max(left - part * down, 0), down))
            share = size / (count + size)
            for k in range(width):
                means[k], m2s[k] = chan_merge_share(means[k], m2s[k], count, part_means[k], part_m2s[k], share)
            count += size
            part += down
        merge_moments(means, m2s, count, exchange, counts)

    return merge_parts


@cache
def sums_of_all(width, across, down):
    """Return the device function `merge_parts(pieces, channels, channel, sums, products, exchange)`.

    It adds up the parts' sums; arguments are as for `moments_of_all`.
    """
    merge_sums = sums_merger(width, across)

    @cuda.jit(device=True)
    def merge_parts(pieces, channels, channel, sums, products, exchange):
        part_sums = cuda.local.array(width, float32)
        part_products = cuda.local.array(width, float32)
        for k in range(width):
            sums[k] = float32(0)
            products[k] = float32(0)
        part = cuda.threadIdx.y
        while part < cuda.gridDim.x and channel < channels:
            load_vector_into(part_sums, 0, pieces, (0, part * channels + channel), width)
            load_vector_into(part_products, 0, pieces, (1, part * channels + channel), width)
            for k in range(width):
                sums[k] += part_sums[k]
                products[k] += part_products[k]
            part += down
        merge_sums(sums, products, exchange)

    return merge_parts
