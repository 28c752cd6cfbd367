"""Channels side by side: channels last, or a matrix (N, C). Lanes take neighbouring channels.

x is (batches, outer, parameters). A thread takes a few neighbouring channels, one vector, and walks down the rows; so
a warp asks for whole stretches of memory, though every channel's values lie far apart. Statistics: a few rows at a time
are held in registers, where two passes over them are free, and merged into what the thread has (one division a
channel and a few rows, where Welford's steps have one a value). Then the block's threads of a channel merge through
shared memory. A piece is what a block makes of a channel.
Moves: as `planes`. Parameters are loaded once for all rows of a thread. Not measured yet.
"""

from functools import cache

import numpy as np

from normlab.engine import accumulator, cast, cuda, float32, load, load_vector_into, store, store_vector_from
from normlab.kernels.family.sets import Pieces, Sets
from normlab.stages.moments import chan_merge
from normlab.stages.recompute import affine, normalised_from_input
from normlab.stages.vector import widest

THREADS = 256
HELD = 32  # values that a thread holds at a time, for statistics
APPLIED = 16  # for all else, of each array
BLOCKS = 1056  # wanted at least: eight of 256 threads on each of an H200's 132 multiprocessors
FEWEST = 4  # rows of a thread, which a part is not cut below


class Columns:
    """The kernels of one view of x, whose run is 1; `arrays` are all that are like x."""

    def __init__(self, sets: Sets, *arrays):
        self.sets = sets
        self.width = widest(sets.parameters, *arrays)
        vectors = sets.parameters // self.width
        self.across = min(32, 1 << (vectors - 1).bit_length())
        self.down = THREADS // self.across
        self.stacks = -(-vectors // self.across)  # of blocks beside each other
        self.parts = max(1, min(sets.outer // (FEWEST * self.down), -(-BLOCKS // (self.stacks * sets.batches))))

    @property
    def pieces(self) -> Pieces:
        """What the first kernels leave."""
        batches, outer, sets, channels, _ = self.sets
        rows = -(-outer // self.parts)
        turns = -(-rows // self.down)
        terms = max(HELD // self.width, turns)  # of a sum; moments: merges of so many rows
        return Pieces(batches, self.parts, sets, channels, 1, terms, turns + (self.down - 1).bit_length())

    def launch_moments(self, launch, x, pieces):
        """Moments of all pieces; pieces: (3, self.pieces.size)."""
        kernel = build_moments(accumulator(pieces), self.width, self.across)
        launch(kernel, *self._blocks, x, np.int64(self.parts), pieces)

    def launch_sums(self, launch, grad_output, x, mean, invvar, pieces):
        """Sums of dy and dy x̂ over all pieces; pieces: (2, self.pieces.size)."""
        kernel = build_sums(accumulator(pieces), self.width, self.across)
        launch(kernel, *self._blocks, grad_output, x, mean, invvar, *self._view, pieces)

    def launch_output(self, launch, x, mean, invvar, weight, bias, output):
        """output = x̂ weight + bias."""
        kernel = build_output(accumulator(invvar), self.width)
        launch(kernel, *self._blocks, x, mean, invvar, weight, bias, *self._view, output)

    def launch_gradient(self, launch, grad_output, x, mean, invvar, weight, mean_g, mean_gx, grad_input):
        """grad_input; mean_g, mean_gx: (batches · sets,), or None where the statistics do not depend on x."""
        kernel = build_gradient(accumulator(invvar), self.width)
        launch(kernel, *self._blocks, grad_output, x, mean, invvar, weight, mean_g, mean_gx, *self._view, grad_input)

    @property
    def _blocks(self) -> tuple:
        return (self.sets.batches * self.parts, self.stacks), (self.across, self.down)

    @property
    def _view(self) -> tuple:
        return np.int64(self.sets.sets), np.int64(self.parts)


@cuda.jit(device=True)
def rows_of(x, parts):
    """(batch, first row, end) of this block: equal parts, which differ by one row at most."""
    part = cuda.blockIdx.x % parts
    return cuda.blockIdx.x // parts, part * x.shape[1] // parts, (part + 1) * x.shape[1] // parts


@cache
def statistics_loader(width):
    """The device function `load_statistics(centers, scales, mean, invvar, batch, channel, channels, sets)`."""

    @cuda.jit(device=True)
    def load_statistics(centers, scales, mean, invvar, batch, channel, channels, sets):
        for k in range(width):
            index = batch * sets + (channel + k) // (channels // sets)
            centers[k] = load(mean, index)
            scales[k] = load(invvar, index)

    return load_statistics


@cache
def build_moments(dtype, width, across):
    """Block (across, THREADS / across)."""
    down, held = THREADS // across, HELD // width
    elements = held * width

    @cuda.jit
    def family_column_moments(x, parts, pieces):
        boards = cuda.shared.array((2, width, THREADS), dtype)
        counts = cuda.shared.array(down, dtype)
        values = cuda.local.array(elements, dtype)
        means = cuda.local.array(width, dtype)
        m2s = cuda.local.array(width, dtype)
        batch, first, end = rows_of(x, parts)
        channel = (cuda.blockIdx.y * across + cuda.threadIdx.x) * width
        y = cuda.threadIdx.y
        thread = y * across + cuda.threadIdx.x
        count = cast(0, pieces)
        for k in range(width):
            means[k] = cast(0, pieces)
            m2s[k] = cast(0, pieces)
        row = first + y
        while row < end and channel < x.shape[2]:
            for r in range(held):
                if row + r * down < end:
                    load_vector_into(values, r * width, x, (batch, row + r * down, channel), width)
                else:
                    for k in range(width):
                        values[r * width + k] = cast(0, pieces)
            here = cast(min((end - row + down - 1) // down, held), pieces)
            share = float32(1) / here
            for k in range(width):
                total = cast(0, pieces)
                for r in range(held):
                    total += values[r * width + k]
                center = total * share
                square_sum = cast(0, pieces)
                for r in range(held):
                    if row + r * down < end:
                        deviation = values[r * width + k] - center
                        square_sum += deviation * deviation
                means[k], m2s[k], _ = chan_merge(means[k], m2s[k], count, center, square_sum, here)
            count += here
            row += held * down
        for k in range(width):
            boards[0, k, thread] = means[k]
            boards[1, k, thread] = m2s[k]
        if cuda.threadIdx.x == 0:
            counts[y] = count
        half = down >> 1
        while half > 0:
            cuda.syncthreads()  # the previous round's moments are in shared memory before they are read
            if y < half:
                for k in range(width):
                    other = thread + half * across
                    center, m2, _ = chan_merge(
                        boards[0, k, thread], boards[1, k, thread], counts[y],
                        boards[0, k, other], boards[1, k, other], counts[y + half],
                    )  # fmt: skip
                    boards[0, k, thread] = center
                    boards[1, k, thread] = m2
            cuda.syncthreads()  # everybody has read the counts before they change
            if y < half and cuda.threadIdx.x == 0:
                counts[y] += counts[y + half]
            half >>= 1
        cuda.syncthreads()  # counts[0] is whole
        if y == 0 and channel < x.shape[2]:
            for k in range(width):
                piece = cuda.blockIdx.x * x.shape[2] + channel + k
                store(pieces, (0, piece), boards[0, k, thread])
                store(pieces, (1, piece), boards[1, k, thread])
                store(pieces, (2, piece), cast(end - first, pieces))

    return family_column_moments


@cache
def build_sums(dtype, width, across):
    """As `build_moments`: the sums of dy and dy x̂."""
    down, held = THREADS // across, APPLIED // width
    elements = held * width
    load_statistics = statistics_loader(width)

    @cuda.jit
    def family_column_sums(grad_output, x, mean, invvar, sets, parts, pieces):
        boards = cuda.shared.array((2, width, THREADS), dtype)
        grads = cuda.local.array(elements, dtype)
        values = cuda.local.array(elements, dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        sums = cuda.local.array(width, dtype)
        products = cuda.local.array(width, dtype)
        batch, first, end = rows_of(x, parts)
        channel = (cuda.blockIdx.y * across + cuda.threadIdx.x) * width
        y = cuda.threadIdx.y
        thread = y * across + cuda.threadIdx.x
        for k in range(width):
            sums[k] = cast(0, pieces)
            products[k] = cast(0, pieces)
        if channel < x.shape[2]:
            load_statistics(centers, scales, mean, invvar, batch, channel, x.shape[2], sets)
            row = first + y
            while row < end:
                for r in range(held):
                    if row + r * down < end:
                        load_vector_into(grads, r * width, grad_output, (batch, row + r * down, channel), width)
                        load_vector_into(values, r * width, x, (batch, row + r * down, channel), width)
                for r in range(held):
                    if row + r * down < end:
                        for k in range(width):
                            grad = grads[r * width + k]
                            sums[k] += grad
                            products[k] += grad * normalised_from_input(values[r * width + k], centers[k], scales[k])
                row += held * down
        for k in range(width):
            boards[0, k, thread] = sums[k]
            boards[1, k, thread] = products[k]
        half = down >> 1
        while half > 0:
            cuda.syncthreads()  # the previous round's sums are in shared memory before they are read
            if y < half:
                for k in range(width):
                    boards[0, k, thread] += boards[0, k, thread + half * across]
                    boards[1, k, thread] += boards[1, k, thread + half * across]
            half >>= 1
        if y == 0 and channel < x.shape[2]:
            for k in range(width):
                piece = cuda.blockIdx.x * x.shape[2] + channel + k
                store(pieces, (0, piece), boards[0, k, thread])
                store(pieces, (1, piece), boards[1, k, thread])

    return family_column_sums


@cache
def build_output(dtype, width):
    """Block (across, down): `across` vectors of channels, rows dealt to `down` threads."""
    held = APPLIED // width
    elements = held * width
    load_statistics = statistics_loader(width)

    @cuda.jit
    def family_column_output(x, mean, invvar, weight, bias, sets, parts, output):
        values = cuda.local.array(elements, dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        batch, first, end = rows_of(x, parts)
        channel = (cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * width
        if channel < x.shape[2]:
            load_statistics(centers, scales, mean, invvar, batch, channel, x.shape[2], sets)
            for k in range(width):
                if weight is not None:
                    gammas[k] = load(weight, channel + k)
                if bias is not None:
                    betas[k] = load(bias, channel + k)
            row = first + cuda.threadIdx.y
            while row < end:
                for r in range(held):  # all loads before the first store, behind which the compiler keeps them
                    at = row + r * cuda.blockDim.y
                    if at < end:
                        load_vector_into(values, r * width, x, (batch, at, channel), width)
                for r in range(held):
                    at = row + r * cuda.blockDim.y
                    if at < end:
                        for k in range(width):
                            gamma = None if weight is None else gammas[k]
                            beta = None if bias is None else betas[k]
                            value = normalised_from_input(values[r * width + k], centers[k], scales[k])
                            values[r * width + k] = affine(value, gamma, beta)
                        store_vector_from(output, (batch, at, channel), values, r * width, width)
                row += held * cuda.blockDim.y

    return family_column_output


@cache
def build_gradient(dtype, width):
    """As `build_output`: grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, g = dy gamma."""
    held = APPLIED // width
    elements = held * width
    load_statistics = statistics_loader(width)

    @cuda.jit
    def family_column_gradient(grad_output, x, mean, invvar, weight, mean_g, mean_gx, sets, parts, grad_input):
        grads = cuda.local.array(elements, dtype)
        values = cuda.local.array(elements, dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        firsts = cuda.local.array(width, dtype)
        seconds = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        batch, first, end = rows_of(x, parts)
        channel = (cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * width
        if channel < x.shape[2]:
            load_statistics(centers, scales, mean, invvar, batch, channel, x.shape[2], sets)
            if mean_g is not None:
                load_statistics(firsts, seconds, mean_g, mean_gx, batch, channel, x.shape[2], sets)
            if weight is not None:
                for k in range(width):
                    gammas[k] = load(weight, channel + k)
            row = first + cuda.threadIdx.y
            while row < end:
                for r in range(held):
                    at = row + r * cuda.blockDim.y
                    if at < end:
                        load_vector_into(grads, r * width, grad_output, (batch, at, channel), width)
                        if mean_g is not None:
                            load_vector_into(values, r * width, x, (batch, at, channel), width)
                for r in range(held):
                    at = row + r * cuda.blockDim.y
                    if at < end:
                        for k in range(width):
                            gamma = None if weight is None else gammas[k]
                            gradient = affine(grads[r * width + k], gamma, None)
                            if mean_g is not None:
                                xhat = normalised_from_input(values[r * width + k], centers[k], scales[k])
                                gradient = gradient - firsts[k] - xhat * seconds[k]
                            grads[r * width + k] = gradient * scales[k]
                        store_vector_from(grad_input, (batch, at, channel), grads, r * width, width)
                row += held * cuda.blockDim.y

    return family_column_gradient
