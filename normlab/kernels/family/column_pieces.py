"""Build the first kernels of `columns`: each block computes the moments, or both sums, of its part of each channel."""

from functools import cache

from normlab.engine import cuda, flat, launch_dependents, store
from normlab.kernels.family.column_merge import Buffers, moments_merger, sums_merger
from normlab.kernels.family.column_vectors import (
    RESIDENT,
    SLOTS,
    SLOTS_OF_TWO,
    THREADS,
    Pair,
    Stages,
    rows_finder,
    statistics_loader,
)
from normlab.kernels.family.column_walks import moments_walker, sums_walker
from normlab.stages.ahead import fetcher


@cache
def build_moments(dtype, itemsize, width, across):
    """Return the kernel `family_column_moments`. Block (across, THREADS / across)."""
    down, step, size = THREADS // across, THREADS * width, SLOTS * THREADS * width
    half_block, half_down = THREADS // 2, THREADS // across // 2
    kind, _, _ = fetcher(dtype, itemsize, width)
    walk_moments = moments_walker(dtype, itemsize, width, step, SLOTS)
    find_rows, merge_moments = rows_finder(width, across, down), moments_merger(width, across)

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def family_column_moments(x, row_blocks, pieces):
        launch_dependents()  # the merging kernel may start early; it waits for this one's results
        ring = cuda.shared.array(size, kind, alignment=16)
        exchange = cuda.shared.array((2, width, half_block), dtype)
        counts = cuda.shared.array(half_down, dtype)
        means = cuda.local.array(width, dtype)
        m2s = cuda.local.array(width, dtype)
        batch = cuda.blockIdx.x // row_blocks
        channel, rows = find_rows(x, batch, cuda.blockIdx.x - batch * row_blocks, row_blocks)
        channels, y = x.shape[2], cuda.threadIdx.y

        # First pass: this thread's rows, then the block's threads of a channel.
        stages = Stages(ring, (y * across + cuda.threadIdx.x) * width)
        count = walk_moments(stages, flat(x), rows, means, m2s)
        count = merge_moments(means, m2s, count, Buffers(exchange, counts))

        # Epilogue: one piece per block and channel.
        if y == 0 and channel < channels:
            for k in range(width):
                piece = cuda.blockIdx.x * channels + channel + k
                store(pieces, (0, piece), means[k])
                store(pieces, (1, piece), m2s[k])
                store(pieces, (2, piece), count)

    return family_column_moments


@cache
def build_sums(dtype, itemsize, width, across):
    """Return the kernel `family_column_sums`, for the sums of dy and dy x̂; otherwise as `build_moments`."""
    down, step, size = THREADS // across, THREADS * width, SLOTS_OF_TWO * THREADS * width
    half_block = THREADS // 2
    kind, _, _ = fetcher(dtype, itemsize, width)
    walk_sums = sums_walker(dtype, itemsize, width, step, SLOTS_OF_TWO)
    find_rows, merge_sums = rows_finder(width, across, down), sums_merger(width, across)
    load_statistics = statistics_loader(width)

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def family_column_sums(grad_output, x, mean, invvar, sets, row_blocks, pieces):
        launch_dependents()  # as in the forward
        grad_ring = cuda.shared.array(size, kind, alignment=16)
        ring = cuda.shared.array(size, kind, alignment=16)
        exchange = cuda.shared.array((2, width, half_block), dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        sums = cuda.local.array(width, dtype)
        products = cuda.local.array(width, dtype)
        batch = cuda.blockIdx.x // row_blocks
        channel, rows = find_rows(x, batch, cuda.blockIdx.x - batch * row_blocks, row_blocks)
        channels, y = x.shape[2], cuda.threadIdx.y
        if rows.first < rows.end:
            load_statistics(Pair(centers, scales), mean, invvar, batch, channel, channels, sets)

        # First pass: this thread's rows, then the block's threads of a channel.
        offset = (y * across + cuda.threadIdx.x) * width
        stages = Stages(grad_ring, offset), Stages(ring, offset)
        walk_sums(stages[0], stages[1], flat(grad_output), flat(x), rows, centers, sums, products)
        merge_sums(sums, products, exchange)

        # Epilogue, as in the forward.
        if y == 0 and channel < channels:
            for k in range(width):
                piece = cuda.blockIdx.x * channels + channel + k
                store(pieces, (0, piece), sums[k])
                store(pieces, (1, piece), products[k] * scales[k])  # dy (x - mean) invvar = dy x̂, scaled once

    return family_column_sums
