"""Compute batch norm of channels last in one kernel per pass, which reads x twice with a barrier of all blocks between.

Idea: each block walks down its rows (`column_walks`) for the statistics, and all blocks meet (`grid_sync`). Each block
then merges all blocks' statistics of its channels in the same order, and walks back up its rows for the output.
Moves: the output once. x twice, and in the backward dy twice; the second reading of some rows comes from shared memory
or L2.
Bound by: memory.

Thread map: the grid is (parts, stacks), with all blocks on the GPU at once, and a block is (across, down) threads. A
stack is the column of blocks that share across * width channels; a part is one block of it. Thread (x, y) of part p has
`width` neighbouring channels and the rows p * down + y, then every (parts * down)-th row after that. Part 0 of each
stack stores the statistics or, in the backward, the parameters' gradients.

Where a row lies: each thread has `slots` vectors of shared memory. The thread's first `kept` rows stay there to the
end; the other slots are a ring of pipeline stages for all later rows. On the way back up the thread finds its last rows
in the ring, the rows before them in L2, earlier rows in DRAM, and its first rows in the kept slots. Keeping the last
rows instead would waste shared memory on data that L2 still holds.
"""

import math
from functools import cache

from normlab.engine import (
    commit_copies,
    cuda,
    flat,
    float32,
    grid_sync,
    load,
    store,
    store_vector_from,
    uint32,
    wait_copies,
)
from normlab.kernels.family.column_merge import moments_merger, moments_of_all, sums_merger, sums_of_all
from normlab.kernels.family.column_ring import statistics_loader
from normlab.kernels.family.column_walks import moments_walker, sums_walker
from normlab.stages.ahead import fetcher
from normlab.stages.recompute import affine, normalised_from_input


@cuda.jit(device=True)
def rows_of(turns, first, stride, end):
    """Return a thread's number of rows: `turns`, or one more if a left-over row is its own; 0 without channels.

    first: the thread's first row. stride: the distance between its rows. end: the number of rows of x, which is also
    the `first` of a thread without channels.
    """
    if first >= end:
        return uint32(0)
    return uint32(turns + 1) if first + turns * stride < end else uint32(turns)


@cuda.jit(device=True)
def slot_of(row, slot, kept, slots):
    """Return the slot of the thread's row number `row` on the way up, given the slot of row number `row + 1`."""
    if row < kept:  # kept rows lie in the slot of their own number
        return row
    # one slot back in the ring, which has the slots `kept` to `slots` - 1
    return uint32(slot - 1) if slot > kept else uint32(slots - 1)


@cache
def build_forward(itemsize, width, across, down, slots, kept):
    """Return the forward kernel for `slots` rows per thread in dynamic shared memory, of which `kept` stay there.

    itemsize: bytes per element of x. width: channels per thread. across, down: the block's threads.
    """
    threads, step = across * down, across * down * width
    half_block, half_down, ring_slots = threads // 2, down // 2, slots - kept
    kind, fetch, take = fetcher(float32, itemsize, width)
    walk_moments = moments_walker(float32, itemsize, width, step, slots, kept)
    all_but_one = ring_slots - 1  # groups of copies that may be pending when a row of the ring must be there
    merge_moments, merge_parts = moments_merger(width, across), moments_of_all(width, across, down)

    @cuda.jit(launch_bounds=(threads, 1))
    def family_column_forward(x, weight, bias, eps, turns, pieces, arrivals, mean, variance, invvar, output):
        """Normalise x, (1, rows, channels), into output, and store mean, invvar and, unless None, variance.

        turns: rows that every thread with channels has; the rows left over go to the first parts. pieces: scratch,
        (2, parts * channels): each part's means and sums of squared deviations. arrivals: for `grid_sync`, 0 at first.
        """
        # Prologue: the thread's channels and rows.
        ring = cuda.shared.array(0, kind, alignment=16)  # all slots, the kept ones first
        exchange = cuda.shared.array((2, width, half_block), float32)  # a merge's upper half of the threads writes it
        counts = cuda.shared.array(half_down, float32)
        values = cuda.local.array(width, float32)
        means = cuda.local.array(width, float32)
        m2s = cuda.local.array(width, float32)
        gammas = cuda.local.array(width, float32)
        betas = cuda.local.array(width, float32)
        _, end, channels = x.shape
        column, y, stride = cuda.threadIdx.x, cuda.threadIdx.y, cuda.gridDim.x * down
        channel = (cuda.blockIdx.y * across + column) * width
        live = channel < channels
        first = cuda.blockIdx.x * down + y if live else end  # without channels: no rows, only the barriers
        # `at`: the index of the thread's vector in x; `apart`: from one row's vector to the next one's; `offset`: of
        # the thread's vector in each slot.
        at, apart, offset = first * channels + channel, stride * channels, (y * across + column) * width

        # First pass, down the rows: each thread's moments, merged over y; thread (x, 0) writes them to `pieces`.
        count = walk_moments(ring, offset, flat(x), at, first, end, stride, apart, means, m2s)
        merge_moments(means, m2s, count, exchange, counts)
        if live:
            if y == 0:
                piece = cuda.blockIdx.x * channels + channel
                store_vector_from(pieces, (0, piece), means, 0, width)
                store_vector_from(pieces, (1, piece), m2s, 0, width)
            for k in range(width):
                if weight is not None:
                    gammas[k] = load(weight, channel + k)
                if bias is not None:
                    betas[k] = load(bias, channel + k)

        # Exchange: every block merges the moments of all parts of its stack. Thread (x, 0) gets the result.
        # After `merge_parts` the exchange buffer may be written again.
        grid_sync(arrivals, 0)  # all blocks have written their moments before a block reads them
        merge_parts(pieces, end, turns, channels, channel, means, m2s, exchange, counts)
        if y == 0:
            for k in range(width):
                exchange[0, k, column] = means[k]
                exchange[1, k, column] = m2s[k]
        cuda.syncthreads()  # the moments are in shared memory before the threads of other y read them

        # Statistics: the threads (x, ·) share their `width` channels, so that each square root is taken once per block.
        k, count = y, float32(end)
        while live and k < width:
            m2 = exchange[1, k, column]
            scale = float32(1) / math.sqrt(m2 / count + eps)
            exchange[1, k, column] = scale
            if cuda.blockIdx.x == 0:
                store(mean, channel + k, exchange[0, k, column])
                store(invvar, channel + k, scale)
                if variance is not None:
                    store(variance, channel + k, m2 / (count - float32(1)))
            k += down
        cuda.syncthreads()  # every channel's scale is there before all threads read it
        for k in range(width):
            means[k] = exchange[0, k, column]
            m2s[k] = exchange[1, k, column]

        # Second pass, up the rows: normalise and store. `row`, `at` and `slot` begin one row past the thread's last.
        row = rows_of(turns, first, stride, end)
        at, ring_apart = (first + row * stride) * channels + channel, ring_slots * apart
        slot = uint32(kept + (row - kept) % ring_slots)  # not used if the thread has only kept rows
        while row > 0:
            row = uint32(row - 1)
            at -= apart
            slot = slot_of(row, slot, kept, slots)
            wait_copies(all_but_one)  # if this row was fetched on the way up, it is the oldest pending group
            take(values, ring, slot * step + offset, x)
            for k in range(width):
                gamma = None if weight is None else gammas[k]
                beta = None if bias is None else betas[k]
                values[k] = affine(normalised_from_input(values[k], means[k], m2s[k]), gamma, beta)
            store_vector_from(flat(output), at, values, 0, width)
            if row >= slots:  # the slot is free: fetch the row that it held before this one on the way down
                fetch(ring, slot * step + offset, flat(x), at - ring_apart)
            commit_copies()  # one group per turn, which may be empty: `wait_copies` counts groups

    return family_column_forward


@cache
def build_backward(itemsize, width, across, down, slots, kept):
    """Return the backward kernel; arguments as for `build_forward`. A slot holds a vector of dy and a vector of x.

    All slots' vectors of dy lie in the first half of dynamic shared memory, those of x in the second half.
    """
    threads, step = across * down, across * down * width
    half_block, ring_slots, other_half = threads // 2, slots - kept, slots * across * down * width
    kind, fetch, take = fetcher(float32, itemsize, width)
    walk_sums = sums_walker(float32, itemsize, width, step, slots, kept)
    all_but_one = ring_slots - 1  # as in the forward
    merge_sums, merge_parts = sums_merger(width, across), sums_of_all(width, across, down)
    load_statistics = statistics_loader(width)

    @cuda.jit(launch_bounds=(threads, 1))
    def family_column_backward(
        grad_output, x, mean, invvar, weight, turns, pieces, arrivals, grad_input, grad_weight, grad_bias
    ):
        """Write grad_input and, unless None, grad_weight and grad_bias. turns, arrivals: as in the forward.

        pieces: scratch, (2, parts * channels): each part's sums of dy and of dy x̂.
        """
        # Prologue: the thread's channels and rows.
        ring = cuda.shared.array(0, kind, alignment=16)
        exchange = cuda.shared.array((2, width, half_block), float32)
        grads = cuda.local.array(width, float32)
        values = cuda.local.array(width, float32)
        centers = cuda.local.array(width, float32)
        scales = cuda.local.array(width, float32)
        sums = cuda.local.array(width, float32)
        products = cuda.local.array(width, float32)
        gammas = cuda.local.array(width, float32)
        _, end, channels = x.shape
        column, y, stride = cuda.threadIdx.x, cuda.threadIdx.y, cuda.gridDim.x * down
        channel = (cuda.blockIdx.y * across + column) * width
        live = channel < channels
        first = cuda.blockIdx.x * down + y if live else end
        at, apart, grad_offset = first * channels + channel, stride * channels, (y * across + column) * width
        offset = other_half + grad_offset
        if live:
            load_statistics(centers, scales, mean, invvar, 0, channel, channels, channels)

        # First pass, down the rows: each thread's sums, added up over y; thread (x, 0) writes them to `pieces`.
        memory = flat(grad_output), flat(x)
        walk_sums(ring, grad_offset, ring, offset, *memory, at, first, end, stride, apart, centers, sums, products)
        merge_sums(sums, products, exchange)
        if live:
            if y == 0:
                piece = cuda.blockIdx.x * channels + channel
                for k in range(width):  # the walk has added up dy (x - mean): times invvar that is dy x̂
                    products[k] *= scales[k]
                store_vector_from(pieces, (0, piece), sums, 0, width)
                store_vector_from(pieces, (1, piece), products, 0, width)
            if weight is not None:
                for k in range(width):
                    gammas[k] = load(weight, channel + k)

        # Exchange: every block adds up the sums of all parts of its stack. Thread (x, 0) gets the result.
        # After `merge_parts` the exchange buffer may be written again.
        grid_sync(arrivals, 0)  # all blocks have written their sums before a block reads them
        merge_parts(pieces, channels, channel, sums, products, exchange)
        if y == 0:
            for k in range(width):
                exchange[0, k, column] = sums[k]
                exchange[1, k, column] = products[k]
        cuda.syncthreads()  # the sums are in shared memory before all threads read them
        if live and cuda.blockIdx.x == 0:
            for k in range(y, width, down):
                if grad_bias is not None:
                    store(grad_bias, channel + k, exchange[0, k, column])
                if grad_weight is not None:
                    store(grad_weight, channel + k, exchange[1, k, column])
        if live:
            for k in range(width):  # from here on `sums` and `products` are the means of g and g x̂
                gamma = None if weight is None else gammas[k]
                sums[k] = affine(exchange[0, k, column], gamma, None) / float32(end)
                products[k] = affine(exchange[1, k, column], gamma, None) / float32(end)

        # Second pass, up the rows, as in the forward: grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar.
        row = rows_of(turns, first, stride, end)
        at, ring_apart = (first + row * stride) * channels + channel, ring_slots * apart
        slot = uint32(kept + (row - kept) % ring_slots)
        while row > 0:
            row = uint32(row - 1)
            at -= apart
            slot = slot_of(row, slot, kept, slots)
            wait_copies(all_but_one)  # if this row was fetched on the way up, it is the oldest pending group
            take(grads, ring, slot * step + grad_offset, grad_output)
            take(values, ring, slot * step + offset, x)
            for k in range(width):
                gradient = affine(grads[k], None if weight is None else gammas[k], None)
                xhat = normalised_from_input(values[k], centers[k], scales[k])
                grads[k] = (gradient - sums[k] - xhat * products[k]) * scales[k]
            store_vector_from(flat(grad_input), at, grads, 0, width)
            if row >= slots:  # the slot is free: fetch the row that it held before this one on the way down
                fetch(ring, slot * step + grad_offset, flat(grad_output), at - ring_apart)
                fetch(ring, slot * step + offset, flat(x), at - ring_apart)
            commit_copies()

    return family_column_backward
