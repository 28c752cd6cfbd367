"""Channels side by side: channels last, or a matrix (N, C). Lanes take neighbouring channels.

x is (batches, outer, parameters). A thread takes a few neighbouring channels, one vector, and walks down the rows; so
a warp asks for whole stretches of memory, though every channel's values lie far apart. What it knows of its channels
takes most of its registers, so that rows are fetched ahead into shared memory (`stages.ahead`). Statistics: Chan's
merge, one value at a time, whose division serves all channels of a row. Then the block's threads of a channel merge
through shared memory. A piece is what a block makes of a channel.

All blocks fit on the GPU at once and go through memory side by side. The last kernel of a pass walks up where the first
one walked down: what was read last still lies in L2.
Moves: as `planes`. Parameters are loaded once for all rows of a thread. Bound by: memory.
"""

from functools import cache

import numpy as np

from normlab.engine import (
    accumulator,
    cast,
    commit_copies,
    cuda,
    float32,
    grid_dependency_sync,
    launch_dependents,
    load,
    store,
    store_vector_from,
    wait_copies,
)
from normlab.kernels.family.sets import Pieces, Sets
from normlab.stages.ahead import fetcher
from normlab.stages.moments import chan_merge_share
from normlab.stages.recompute import affine, normalised_from_input
from normlab.stages.vector import widest

THREADS = 256
RESIDENT = 3  # blocks of a multiprocessor at least, which leaves a thread 80 registers
BLOCKS = 256  # wanted, where an H200 holds 396: merging more pieces takes longer than they gain
MANY = 4  # times as many, where there are too many for that: then the last ones to work alone are few
SLOTS = 8  # of a thread's ring, for vectors of one array; all but one are on their way
IN_FLIGHT = SLOTS - 1
SLOTS_OF_TWO = 5  # for vectors of two arrays
IN_FLIGHT_OF_TWO = SLOTS_OF_TWO - 1
TURNS = 16  # rows of a thread in the last kernel
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
        least = self.stacks * sets.batches  # blocks, with one part
        parts = BLOCKS // least if 2 * least <= BLOCKS else -(-MANY * BLOCKS // least)
        self.parts = max(1, min(sets.outer // (FEWEST * self.down), parts))

    @property
    def pieces(self) -> Pieces:
        """What the first kernels leave."""
        batches, outer, sets, channels, _ = self.sets
        turns = -(-outer // (self.parts * self.down)) + 1  # parts differ by a row
        return Pieces(batches, self.parts, sets, channels, 1, turns, turns + (self.down - 1).bit_length())

    def launch_moments(self, launch, x, pieces):
        """Moments of all pieces; pieces: (3, self.pieces.size)."""
        kernel = build_moments(accumulator(pieces), x.dtype.itemsize, self.width, self.across)
        launch(kernel, *self._blocks, x, np.int64(self.parts), pieces)

    def launch_sums(self, launch, grad_output, x, mean, invvar, pieces):
        """Sums of dy and dy x̂ over all pieces; pieces: (2, self.pieces.size)."""
        kernel = build_sums(accumulator(pieces), x.dtype.itemsize, self.width, self.across)
        launch(kernel, *self._blocks, grad_output, x, mean, invvar, *self._view, pieces)

    def launch_output(self, launch, x, mean, invvar, weight, bias, output):
        """output = x̂ weight + bias."""
        kernel = build_output(accumulator(invvar), x.dtype.itemsize, self.width)
        blocks, view = self._applying
        launch(kernel, *blocks, x, mean, invvar, weight, bias, *view, output)

    def launch_gradient(self, launch, grad_output, x, mean, invvar, weight, mean_g, mean_gx, grad_input):
        """grad_input; mean_g, mean_gx: (batches · sets,), or None where the statistics do not depend on x."""
        kernel = build_gradient(accumulator(invvar), x.dtype.itemsize, self.width)
        blocks, view = self._applying
        launch(kernel, *blocks, grad_output, x, mean, invvar, weight, mean_g, mean_gx, *view, grad_input)

    @property
    def _blocks(self) -> tuple:
        return (self.sets.batches * self.parts, self.stacks), (self.across, self.down)

    @property
    def _applying(self) -> tuple:
        """Blocks of the last kernel, and what it has to know."""
        turns = min(TURNS, -(-self.sets.outer // self.down))
        parts = -(-self.sets.outer // (turns * self.down))
        blocks = self.sets.batches * parts * self.stacks, (self.across, self.down)
        return blocks, (np.int64(self.sets.sets), np.int64(parts), np.int64(turns))

    @property
    def _view(self) -> tuple:
        return np.int64(self.sets.sets), np.int64(self.parts)


@cuda.jit(device=True)
def rows_of(x, parts, y, down):
    """(batch, first row, distance from row to row) of a thread: its block takes every so manieth bundle of rows."""
    batch = cuda.blockIdx.x // parts
    return batch, (cuda.blockIdx.x - batch * parts) * down + y, parts * down


@cuda.jit(device=True)
def share_of(x, parts, turns, width):
    """(batch, first row, last row, channel) of a thread of the last kernel, whose first block takes the end of memory.

    Blocks beside each other in memory follow each other; each has the next `turns` rows for each of its threads.
    """
    across, down = cuda.blockDim.x * width, cuda.blockDim.y
    number = cuda.gridDim.x - 1 - cuda.blockIdx.x
    stacks = (x.shape[2] + across - 1) // across
    bundle = number // stacks
    batch = bundle // parts
    first = (bundle - batch * parts) * turns * down + cuda.threadIdx.y
    last = first + min(turns - 1, (x.shape[1] - 1 - first) // down) * down
    return batch, first, last, (number - bundle * stacks) * across + cuda.threadIdx.x * width


@cuda.jit(device=True)
def next_slot(slot, slots):
    """The place in the ring behind this one."""
    return slot + 1 if slot + 1 < slots else 0


@cache
def statistics_loader(width):
    """The device function `load_statistics(centers, scales, mean, invvar, batch, channel, channels, sets)`."""

    @cuda.jit(device=True)
    def load_statistics(centers, scales, mean, invvar, batch, channel, channels, sets):
        each = channels // sets
        for k in range(width):
            index = batch * sets + (channel + k if each == 1 else (channel + k) // each)
            centers[k] = load(mean, index)
            scales[k] = load(invvar, index)

    return load_statistics


@cache
def build_moments(dtype, itemsize, width, across):
    """Block (across, THREADS / across)."""
    down, step, size = THREADS // across, THREADS * width, SLOTS * THREADS * width
    kind, fetch, take = fetcher(dtype, itemsize, width)
    half_block, half_down = THREADS // 2, THREADS // across // 2

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
        half = down >> 1
        while half > 0:  # the upper half of the block's rows gives its moments to the lower one
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
        half = down >> 1
        while half > 0:  # as in the moments
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
        if y == 0 and channel < x.shape[2]:
            for k in range(width):
                piece = cuda.blockIdx.x * x.shape[2] + channel + k
                store(pieces, (0, piece), sums[k])
                store(pieces, (1, piece), products[k] * scales[k])

    return family_column_sums


@cache
def build_output(dtype, itemsize, width):
    """Block (across, down): `across` vectors of channels, rows dealt to `down` threads, the last ones first."""
    step, size = THREADS * width, SLOTS * THREADS * width
    kind, fetch, take = fetcher(dtype, itemsize, width)
    load_statistics = statistics_loader(width)

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def family_column_output(x, mean, invvar, weight, bias, sets, parts, turns, output):
        ring = cuda.shared.array(size, kind, alignment=16)
        values = cuda.local.array(width, dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        batch, first, row, channel = share_of(x, parts, turns, width)
        down = cuda.blockDim.y
        place = (cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * width
        if channel < x.shape[2] and first < x.shape[1]:
            ahead = row
            for slot in range(IN_FLIGHT):
                if ahead >= first:
                    fetch(ring, slot * step + place, x, (batch, ahead, channel))
                commit_copies()
                ahead -= down
            grid_dependency_sync()  # x was there before
            load_statistics(centers, scales, mean, invvar, batch, channel, x.shape[2], sets)
            for k in range(width):
                if weight is not None:
                    gammas[k] = load(weight, channel + k)
                if bias is not None:
                    betas[k] = load(bias, channel + k)
            slot = 0
            free = IN_FLIGHT
            while row >= first:
                if ahead >= first:
                    fetch(ring, free * step + place, x, (batch, ahead, channel))
                commit_copies()
                wait_copies(IN_FLIGHT)
                take(values, ring, slot * step + place, x)
                for k in range(width):
                    gamma = None if weight is None else gammas[k]
                    beta = None if bias is None else betas[k]
                    values[k] = affine(normalised_from_input(values[k], centers[k], scales[k]), gamma, beta)
                store_vector_from(output, (batch, row, channel), values, 0, width)
                row -= down
                ahead -= down
                free = slot
                slot = next_slot(slot, SLOTS)

    return family_column_output


@cache
def build_gradient(dtype, itemsize, width):
    """As `build_output`: grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, g = dy gamma."""
    step, size = THREADS * width, SLOTS_OF_TWO * THREADS * width
    kind, fetch, take = fetcher(dtype, itemsize, width)
    load_statistics = statistics_loader(width)

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def family_column_gradient(grad_output, x, mean, invvar, weight, mean_g, mean_gx, sets, parts, turns, grad_input):
        grad_ring = cuda.shared.array(size, kind, alignment=16)
        ring = cuda.shared.array(size, kind, alignment=16)
        grads = cuda.local.array(width, dtype)
        values = cuda.local.array(width, dtype)
        centers = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        firsts = cuda.local.array(width, dtype)
        seconds = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        if mean_g is None:  # then this is the first kernel of its operation
            grid_dependency_sync()
        batch, first, row, channel = share_of(x, parts, turns, width)
        down = cuda.blockDim.y
        place = (cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * width
        if channel < x.shape[2] and first < x.shape[1]:
            ahead = row
            for slot in range(IN_FLIGHT_OF_TWO):
                if ahead >= first:
                    fetch(grad_ring, slot * step + place, grad_output, (batch, ahead, channel))
                    if mean_g is not None:
                        fetch(ring, slot * step + place, x, (batch, ahead, channel))
                commit_copies()
                ahead -= down
            grid_dependency_sync()  # x was there before
            load_statistics(centers, scales, mean, invvar, batch, channel, x.shape[2], sets)
            if mean_g is not None:
                load_statistics(firsts, seconds, mean_g, mean_gx, batch, channel, x.shape[2], sets)
            if weight is not None:
                for k in range(width):
                    gammas[k] = load(weight, channel + k)
            slot = 0
            free = IN_FLIGHT_OF_TWO
            while row >= first:
                if ahead >= first:
                    fetch(grad_ring, free * step + place, grad_output, (batch, ahead, channel))
                    if mean_g is not None:
                        fetch(ring, free * step + place, x, (batch, ahead, channel))
                commit_copies()
                wait_copies(IN_FLIGHT_OF_TWO)
                take(grads, grad_ring, slot * step + place, grad_output)
                if mean_g is not None:
                    take(values, ring, slot * step + place, x)
                for k in range(width):
                    gradient = affine(grads[k], None if weight is None else gammas[k], None)
                    if mean_g is not None:
                        xhat = normalised_from_input(values[k], centers[k], scales[k])
                        gradient = gradient - firsts[k] - xhat * seconds[k]
                    grads[k] = gradient * scales[k]
                store_vector_from(grad_input, (batch, row, channel), grads, 0, width)
                row -= down
                ahead -= down
                free = slot
                slot = next_slot(slot, SLOTS_OF_TWO)

    return family_column_gradient
