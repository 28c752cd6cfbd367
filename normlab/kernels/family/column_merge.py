"""Merge what the threads of a block, or the blocks of a grid, have found of the same channels, for `columns`.

All threads (x, ·) of a block (across, down) have the same `width` channels. The threads merge by halving y: the upper
half writes to the exchange buffer, the lower half reads and merges, until y = 0 has everything. All threads of the
block call these functions together; afterwards the exchange buffer may be used again.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda, float32, load_vector_into
from normlab.stages.moments import chan_merge_share


class Buffers(NamedTuple):
    """The shared memory of a merge of moments: `exchange`, (2, width, threads / 2), and `counts`, (down / 2,)."""

    exchange: Any
    counts: Any


@cache
def moments_merger(width, across):
    """Return the device function `merge_moments(means, m2s, count, buffers)`, which returns the merged count.

    means, m2s: local, (width,). count: values per channel, the same for all channels of a thread. buffers: `Buffers`.
    All have the accumulator's dtype.
    """

    @cuda.jit(device=True)
    def merge_moments(means, m2s, count, buffers):
        exchange, counts = buffers
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
    """Return the device function `merge_sums(sums, products, exchange)`; its arrays are as for `moments_merger`."""

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
    """Return the device function `merge_blocks(pieces, outer, turns, channels, channel, means, m2s, buffers)`.

    It merges the row blocks' moments of a thread's channels over all `outer` rows; threads with y = 0 get the result.
    pieces: (2, row blocks * channels): means, sums of squared deviations. A row block has `turns` bundles of `down`
    rows, and its share of the rows that are left over.
    """
    merge_moments = moments_merger(width, across)

    @cuda.jit(device=True)
    def merge_blocks(pieces, outer, turns, channels, channel, means, m2s, buffers):
        block_means = cuda.local.array(width, float32)
        block_m2s = cuda.local.array(width, float32)
        count = float32(0)
        for k in range(width):
            means[k] = float32(0)
            m2s[k] = float32(0)
        # The threads of a channel take its row blocks in turn, and then merge through shared memory.
        block, blocks = cuda.threadIdx.y, cuda.gridDim.x
        left = outer - blocks * turns * down
        while block < blocks and channel < channels:
            load_vector_into(block_means, 0, pieces, (0, block * channels + channel), width)
            load_vector_into(block_m2s, 0, pieces, (1, block * channels + channel), width)
            # counts are computed, not exchanged: the rows left over go to the first row blocks
            size = float32(turns * down + min(max(left - block * down, 0), down))
            share = size / (count + size)  # one division for all of the thread's channels
            for k in range(width):
                means[k], m2s[k] = chan_merge_share(means[k], m2s[k], count, block_means[k], block_m2s[k], share)
            count += size
            block += down
        merge_moments(means, m2s, count, buffers)

    return merge_blocks


@cache
def sums_of_all(width, across, down):
    """Return the device function `merge_blocks(pieces, channels, channel, sums, products, exchange)`.

    It adds up the row blocks' sums; arguments are as for `moments_of_all`.
    """
    merge_sums = sums_merger(width, across)

    @cuda.jit(device=True)
    def merge_blocks(pieces, channels, channel, sums, products, exchange):
        block_sums = cuda.local.array(width, float32)
        block_products = cuda.local.array(width, float32)
        for k in range(width):
            sums[k] = float32(0)
            products[k] = float32(0)
        block = cuda.threadIdx.y
        while block < cuda.gridDim.x and channel < channels:
            load_vector_into(block_sums, 0, pieces, (0, block * channels + channel), width)
            load_vector_into(block_products, 0, pieces, (1, block * channels + channel), width)
            for k in range(width):
                sums[k] += block_sums[k]
                products[k] += block_products[k]
            block += down
        merge_sums(sums, products, exchange)

    return merge_blocks


@cache
def shared_out(width):
    """Return the device function `share_out(exchange, firsts, seconds)`: give what threads y = 0 have to all threads.

    Afterwards exchange[0, k, x] and exchange[1, k, x] hold both results of the k-th channel of the threads (x, ·).
    """

    @cuda.jit(device=True)
    def share_out(exchange, firsts, seconds):
        # The merge before this has ended with a barrier, so the exchange buffer may be overwritten.
        if cuda.threadIdx.y == 0:
            for k in range(width):
                exchange[0, k, cuda.threadIdx.x] = firsts[k]
                exchange[1, k, cuda.threadIdx.x] = seconds[k]
        cuda.syncthreads()  # the results are in shared memory before the threads of other y read them

    return share_out
