"""The first kernels of `columns`: the moments, or both sums, of what a block reads of its channels."""

from functools import cache

from normlab.engine import cast, commit_copies, cuda, float32, launch_dependents, store, wait_copies
from normlab.kernels.family.column_merge import moments_merger, sums_merger
from normlab.kernels.family.column_ring import (
    IN_FLIGHT,
    IN_FLIGHT_OF_TWO,
    RESIDENT,
    SLOTS,
    SLOTS_OF_TWO,
    THREADS,
    next_slot,
    statistics_loader,
)
from normlab.stages.ahead import fetcher
from normlab.stages.moments import chan_merge_share


@cuda.jit(device=True)
def rows_of(x, parts, y, down):
    """(batch, first row, distance from row to row) of a thread; `parts` blocks take bundles of `down` rows in turn."""
    batch = cuda.blockIdx.x // parts
    return batch, (cuda.blockIdx.x - batch * parts) * down + y, parts * down


@cache
def build_moments(dtype, itemsize, width, across):
    """Block (across, THREADS / across)."""
    down, step, size = THREADS // across, THREADS * width, SLOTS * THREADS * width
    kind, fetch, take = fetcher(dtype, itemsize, width)
    half_block, half_down = THREADS // 2, THREADS // across // 2
    merge_moments = moments_merger(width, across)

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def family_column_moments(x, parts, pieces):
        launch_dependents()
        ring = cuda.shared.array(size, kind, alignment=16)
        boards = cuda.shared.array((2, width, half_block), dtype)
        counts = cuda.shared.array(half_down, dtype)
        values = cuda.local.array(width, dtype)
        means = cuda.local.array(width, dtype)
        m2s = cuda.local.array(width, dtype)
        channel = (cuda.blockIdx.y * across + cuda.threadIdx.x) * width
        y = cuda.threadIdx.y
        thread = y * across + cuda.threadIdx.x
        batch, row, stride = rows_of(x, parts, y, down)
        end = x.shape[1]
        count = cast(0, pieces)
        for k in range(width):
            means[k] = cast(0, pieces)
            m2s[k] = cast(0, pieces)
        if channel >= x.shape[2]:
            end = row  # nothing to do but to come to the barriers
        ahead = row
        for slot in range(IN_FLIGHT):
            if ahead < end:
                fetch(ring, slot * step + thread * width, x, (batch, ahead, channel))
            commit_copies()
            ahead += stride
        slot = 0
        free = IN_FLIGHT
        while row < end:
            if ahead < end:
                fetch(ring, free * step + thread * width, x, (batch, ahead, channel))
            commit_copies()
            wait_copies(IN_FLIGHT)
            take(values, ring, slot * step + thread * width, x)
            share = float32(1) / (count + float32(1))
            for k in range(width):  # a row is a group of one
                means[k], m2s[k] = chan_merge_share(means[k], m2s[k], count, values[k], cast(0, pieces), share)
            count += float32(1)
            row += stride
            ahead += stride
            free = slot
            slot = next_slot(slot, SLOTS)
        count = merge_moments(means, m2s, count, boards, counts)
        if y == 0 and channel < x.shape[2]:
            for k in range(width):
                piece = cuda.blockIdx.x * x.shape[2] + channel + k
                store(pieces, (0, piece), means[k])
                store(pieces, (1, piece), m2s[k])
                store(pieces, (2, piece), count)

    return family_column_moments


@cache
def build_sums(dtype, itemsize, width, across):
    """As `build_moments`: the sums of dy and dy x̂."""
    down, step, size = THREADS // across, THREADS * width, SLOTS_OF_TWO * THREADS * width
    kind, fetch, take = fetcher(dtype, itemsize, width)
    half_block = THREADS // 2
    merge_sums = sums_merger(width, across)
    load_statistics = statistics_loader(width)

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def family_column_sums(grad_output, x, mean, invvar, sets, parts, pieces):
        launch_dependents()
        grad_ring = cuda.shared.array(size, kind, alignment=16)
        ring = cuda.shared.array(size, kind, alignment=16)
        boards = cuda.shared.array((2, width, half_block), dtype)
        grads = cuda.local.array(width, dtype)
        values = cuda.local.array(width, dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        sums = cuda.local.array(width, dtype)
        products = cuda.local.array(width, dtype)
        channel = (cuda.blockIdx.y * across + cuda.threadIdx.x) * width
        y = cuda.threadIdx.y
        thread = y * across + cuda.threadIdx.x
        batch, row, stride = rows_of(x, parts, y, down)
        end = x.shape[1]
        for k in range(width):
            sums[k] = cast(0, pieces)
            products[k] = cast(0, pieces)
        if channel >= x.shape[2]:
            end = row  # nothing to do but to come to the barriers
        ahead = row
        for slot in range(IN_FLIGHT_OF_TWO):
            if ahead < end:
                fetch(grad_ring, slot * step + thread * width, grad_output, (batch, ahead, channel))
                fetch(ring, slot * step + thread * width, x, (batch, ahead, channel))
            commit_copies()
            ahead += stride
        if row < end:
            load_statistics(centers, scales, mean, invvar, batch, channel, x.shape[2], sets)
        slot = 0
        free = IN_FLIGHT_OF_TWO
        while row < end:
            if ahead < end:
                fetch(grad_ring, free * step + thread * width, grad_output, (batch, ahead, channel))
                fetch(ring, free * step + thread * width, x, (batch, ahead, channel))
            commit_copies()
            wait_copies(IN_FLIGHT_OF_TWO)
            take(grads, grad_ring, slot * step + thread * width, grad_output)
            take(values, ring, slot * step + thread * width, x)
            for k in range(width):
                sums[k] += grads[k]
                products[k] += grads[k] * (values[k] - centers[k])
            row += stride
            ahead += stride
            free = slot
            slot = next_slot(slot, SLOTS_OF_TWO)
        merge_sums(sums, products, boards)
        if y == 0 and channel < x.shape[2]:
            for k in range(width):
                piece = cuda.blockIdx.x * x.shape[2] + channel + k
                store(pieces, (0, piece), sums[k])
                store(pieces, (1, piece), products[k] * scales[k])

    return family_column_sums
