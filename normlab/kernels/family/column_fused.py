"""Compute batch norm of channels last in one kernel per pass, which reads x twice with a barrier of all blocks between.

Idea: each block walks down its rows (`column_walks`) for the statistics, and all blocks meet (`grid_sync`). Each block
then merges all blocks' statistics of its channels, and walks back up its rows (`column_returns`) for the output.
Moves: the output once. x twice, and in the backward dy twice; the second reading of some rows comes from shared memory
or L2.
Bound by: memory.
Measured: record family_h200, and the site's speed pages.
Next: nothing; a row that shared memory does not hold has to be read twice.

What changed from the three kernels of `columns`: one launch instead of three · each block merges the statistics of its
channels itself · some rows stay in shared memory between the two readings · the grid has a barrier, so all blocks must
be on the GPU at once.

Thread map: the grid is (row blocks, stacks), a block is (across, down) threads. A stack is the column of blocks with
the same channels, across * width of them. Thread (x, y) of row block b has `width` neighbouring channels and the rows
b * down + y, then every (row blocks * down)-th row after that. Row block 0 of each stack stores the statistics or, in
the backward, the parameters' gradients.

Where a row lies: each thread has `slots` vectors of shared memory. The thread's first `kept` rows stay there to the
end; the other slots are a ring of pipeline stages for all later rows. The last rows are still in L2 when the thread
walks back up. Keeping them instead would waste shared memory on data that is already cached.
"""

import math
from functools import cache

from normlab.engine import cuda, flat, float32, grid_sync, store, store_vector_from
from normlab.kernels.family.column_merge import (
    Buffers,
    moments_merger,
    moments_of_all,
    shared_out,
    sums_merger,
    sums_of_all,
)
from normlab.kernels.family.column_returns import gradient_writer, output_writer
from normlab.kernels.family.column_vectors import (
    Affine,
    Pair,
    Stages,
    parameters_loader,
    rows_finder,
    statistics_loader,
)
from normlab.kernels.family.column_walks import moments_walker, sums_walker
from normlab.stages.ahead import fetcher
from normlab.stages.recompute import affine


@cache
def statistics_storer(width, down):
    """Return `store_statistics(exchange, live, channel, count, eps, mean, variance, invvar)`, a device function.

    It replaces the sums of squared deviations in exchange[1] by invvar. Row block 0 stores the statistics.
    """

    @cuda.jit(device=True)
    def store_statistics(exchange, live, channel, count, eps, mean, variance, invvar):
        # The threads (x, ·) share their `width` channels, so that each square root is taken once per block.
        column, k = cuda.threadIdx.x, cuda.threadIdx.y
        while live and k < width:
            m2 = exchange[1, k, column]
            scale = float32(1) / math.sqrt(m2 / count + eps)
            exchange[1, k, column] = scale
            if cuda.blockIdx.x == 0:
                store(mean, channel + k, exchange[0, k, column])
                store(invvar, channel + k, scale)
                if variance is not None:  # unbiased, for the running statistics
                    store(variance, channel + k, m2 / (count - float32(1)))
            k += down
        cuda.syncthreads()  # every channel's scale is there before all threads read it

    return store_statistics


@cache
def gradients_storer(width, down):
    """Return the device function `store_gradients(exchange, live, channel, grad_weight, grad_bias)`.

    Row block 0 stores both gradients; the threads (x, ·) share their channels.
    """

    @cuda.jit(device=True)
    def store_gradients(exchange, live, channel, grad_weight, grad_bias):
        column = cuda.threadIdx.x
        if live and cuda.blockIdx.x == 0:
            for k in range(cuda.threadIdx.y, width, down):
                if grad_bias is not None:
                    store(grad_bias, channel + k, exchange[0, k, column])
                if grad_weight is not None:
                    store(grad_weight, channel + k, exchange[1, k, column])

    return store_gradients


@cache
def means_finder(width):
    """Return the device function `find_means(means, exchange, weight, gammas, count)`: the means of g and of g x̂."""

    @cuda.jit(device=True)
    def find_means(means, exchange, weight, gammas, count):
        column = cuda.threadIdx.x
        for k in range(width):  # gamma is the same for all rows, so the sums are multiplied by it, not each row
            gamma = None if weight is None else gammas[k]
            means.first[k] = affine(exchange[0, k, column], gamma, None) / count
            means.second[k] = affine(exchange[1, k, column], gamma, None) / count

    return find_means


@cache
def build_forward(itemsize, width, across, down, slots, kept):
    """Return the forward kernel for `slots` rows per thread in dynamic shared memory, of which `kept` stay there.

    itemsize: bytes per element of x. width: channels per thread. across, down: the block's threads.
    """
    threads, step, half_block, half_down = across * down, across * down * width, across * down // 2, down // 2
    kind, _, _ = fetcher(float32, itemsize, width)
    walk_moments = moments_walker(float32, itemsize, width, step, slots, kept)
    merge_moments, merge_blocks = moments_merger(width, across), moments_of_all(width, across, down)
    find_rows, share_out, store_statistics = (
        rows_finder(width, across, down), shared_out(width), statistics_storer(width, down),
    )  # fmt: skip
    load_parameters, write_output = parameters_loader(width), output_writer(itemsize, width, step, slots, kept)

    @cuda.jit(launch_bounds=(threads, 1))
    def family_column_forward(x, weight, bias, eps, turns, pieces, arrivals, mean, variance, invvar, output):
        """Normalise x, (1, rows, channels), into output, and store mean, invvar and, unless None, variance.

        turns: rows that every thread with channels has; the rows left over go to the first row blocks. pieces: scratch,
        (2, row blocks * channels): each row block's means and sums of squared deviations. arrivals: for `grid_sync`, 0
        at first.
        """
        # Prologue: the thread's channels and rows.
        ring = cuda.shared.array(0, kind, alignment=16)  # all slots, the kept ones first
        exchange = cuda.shared.array((2, width, half_block), float32)  # a merge's upper half of the threads writes it
        counts = cuda.shared.array(half_down, float32)
        means = cuda.local.array(width, float32)
        m2s = cuda.local.array(width, float32)  # from the exchange on: invvar
        gammas = cuda.local.array(width, float32)
        betas = cuda.local.array(width, float32)
        channel, rows = find_rows(x, 0, cuda.blockIdx.x, cuda.gridDim.x)
        channels, buffers = x.shape[2], Buffers(exchange, counts)
        live = channel < channels
        stages = Stages(ring, (cuda.threadIdx.y * across + cuda.threadIdx.x) * width)

        # First pass, down the rows: each thread's moments, merged over y; thread (x, 0) writes them to `pieces`.
        count = walk_moments(stages, flat(x), rows, means, m2s)
        merge_moments(means, m2s, count, buffers)
        if live:
            if cuda.threadIdx.y == 0:
                piece = cuda.blockIdx.x * channels + channel
                store_vector_from(pieces, (0, piece), means, 0, width)
                store_vector_from(pieces, (1, piece), m2s, 0, width)
            load_parameters(weight, bias, gammas, betas, channel)  # before the barrier, which hides the loads

        # Exchange: every block merges the moments of all row blocks of its stack, in the same order: the same bits.
        grid_sync(arrivals, 0)  # all blocks have written their moments before a block reads them
        merge_blocks(pieces, rows.end, turns, channels, channel, means, m2s, buffers)
        share_out(exchange, means, m2s)
        store_statistics(exchange, live, channel, float32(rows.end), eps, mean, variance, invvar)
        for k in range(width):
            means[k] = exchange[0, k, cuda.threadIdx.x]
            m2s[k] = exchange[1, k, cuda.threadIdx.x]

        # Second pass, up the rows: normalise and store.
        parameters = Affine(weight, bias, gammas, betas)
        write_output(stages, x, output, rows, turns, Pair(means, m2s), parameters)

    return family_column_forward


@cache
def build_backward(itemsize, width, across, down, slots, kept):
    """Return the backward kernel; arguments as for `build_forward`. A slot holds a vector of dy and a vector of x.

    All slots' vectors of dy lie in the first half of dynamic shared memory, those of x in the second half.
    """
    threads, step, half_block = across * down, across * down * width, across * down // 2
    other_half = slots * step  # elements of the ring before the vectors of x
    kind, _, _ = fetcher(float32, itemsize, width)
    walk_sums = sums_walker(float32, itemsize, width, step, slots, kept)
    merge_sums, merge_blocks = sums_merger(width, across), sums_of_all(width, across, down)
    find_rows, share_out, store_gradients, find_means = (
        rows_finder(width, across, down), shared_out(width), gradients_storer(width, down), means_finder(width),
    )  # fmt: skip
    load_statistics, load_parameters = statistics_loader(width), parameters_loader(width)
    write_gradient = gradient_writer(itemsize, width, step, slots, kept)

    @cuda.jit(launch_bounds=(threads, 1))
    def family_column_backward(
        grad_output, x, mean, invvar, weight, turns, pieces, arrivals, grad_input, grad_weight, grad_bias
    ):
        """Write grad_input and, unless None, grad_weight and grad_bias. turns, arrivals: as in the forward.

        pieces: scratch, (2, row blocks * channels): each row block's sums of dy and of dy x̂.
        """
        # Prologue: the thread's channels and rows.
        ring = cuda.shared.array(0, kind, alignment=16)
        exchange = cuda.shared.array((2, width, half_block), float32)
        centers = cuda.local.array(width, float32)
        scales = cuda.local.array(width, float32)
        sums = cuda.local.array(width, float32)
        products = cuda.local.array(width, float32)
        gammas = cuda.local.array(width, float32)
        channel, rows = find_rows(x, 0, cuda.blockIdx.x, cuda.gridDim.x)
        channels, statistics = x.shape[2], Pair(centers, scales)
        live = channel < channels
        offset = (cuda.threadIdx.y * across + cuda.threadIdx.x) * width
        stages = Stages(ring, offset), Stages(ring, other_half + offset)
        if live:
            load_statistics(statistics, mean, invvar, 0, channel, channels, channels)

        # First pass, down the rows: each thread's sums, added up over y; thread (x, 0) writes them to `pieces`.
        walk_sums(stages[0], stages[1], flat(grad_output), flat(x), rows, centers, sums, products)
        merge_sums(sums, products, exchange)
        if live:
            if cuda.threadIdx.y == 0:
                piece = cuda.blockIdx.x * channels + channel
                for k in range(width):  # the walk has added up dy (x - mean): times invvar that is dy x̂
                    products[k] *= scales[k]
                store_vector_from(pieces, (0, piece), sums, 0, width)
                store_vector_from(pieces, (1, piece), products, 0, width)
            load_parameters(weight, None, gammas, None, channel)

        # Exchange: every block adds up the sums of all row blocks of its stack.
        grid_sync(arrivals, 0)  # all blocks have written their sums before a block reads them
        merge_blocks(pieces, channels, channel, sums, products, exchange)
        share_out(exchange, sums, products)
        store_gradients(exchange, live, channel, grad_weight, grad_bias)
        means = Pair(sums, products)  # from here on they hold the means of g and g x̂
        if live:
            find_means(means, exchange, weight, gammas, float32(rows.end))

        # Second pass, up the rows, as in the forward.
        matrices, parameters = (grad_output, x, grad_input), Affine(weight, None, gammas, None)
        write_gradient(stages, matrices, rows, turns, statistics, means, parameters)

    return family_column_backward
