"""Runs of neighbouring values of one channel: N C *spatial, as it is. Lanes take neighbouring values.

A piece is a channel's plane, or a part of it of up to 1024 values: a team of lanes holds it in registers, finds its
mean and then its squared deviations, and leaves them to `merge`. No shared memory, no barrier. The last kernel of a
pass reads everything again, from L2 if it fits.
Moves: x twice and the output once; backward: both arrays twice and grad_input once. Not measured yet.

Arrays are (batches · outer, parameters, run); statistics (batches · sets,); parameters (sets · channels,) or None.
"""

from functools import cache

import numpy as np

from normlab.engine import accumulator, cast, cuda, load, load_vector_into, store, store_vector_from
from normlab.kernels.family.sets import Pieces, Sets
from normlab.stages.recompute import affine, element, normalised_from_input
from normlab.stages.seats import levels_for, seats_sum
from normlab.stages.vector import widest

THREADS = 128  # of a block that finds pieces
HELD = 32  # values that a lane holds at most
APPLIED = 16  # values that a thread of the last kernel takes at most, of each array
APPLY_THREADS = 256
GRID_LIMIT = 65535


class Planes:
    """The kernels of one view of x; `arrays` are all that are read or written along a run."""

    def __init__(self, sets: Sets, *arrays):
        self.sets = sets
        self.width = widest(sets.run, *arrays)
        self.vectors = sets.run // self.width
        held = 32 * HELD // self.width
        self.parts = -(-self.vectors // held)
        longest = -(-self.vectors // self.parts)
        self.levels = levels_for(longest)
        self.turns = -(-longest >> self.levels)
        self.across = min(APPLY_THREADS, 1 << (self.vectors - 1).bit_length())
        self.applied = min(APPLIED // self.width, -(-self.vectors // self.across))

    @property
    def pieces(self) -> Pieces:
        """What the first kernels leave."""
        batches, outer, sets, channels, _ = self.sets
        terms = self.turns * self.width
        return Pieces(batches, outer, sets, channels * self.parts, self.parts, terms, self.levels)

    def launch_moments(self, launch, x, pieces):
        """Moments of all pieces; pieces: (3, self.pieces.size)."""
        kernel = build_moments(accumulator(pieces), self.width, self.turns, self.levels)
        launch(kernel, self._grid, THREADS, x, np.int64(self.parts), pieces)

    def launch_sums(self, launch, grad_output, x, mean, invvar, pieces):
        """Sums of dy and dy x̂ over all pieces; pieces: (2, self.pieces.size)."""
        kernel = build_sums(accumulator(pieces), self.width, self.turns, self.levels)
        view = np.int64(self.sets.outer), np.int64(self.sets.sets), np.int64(self.parts)
        launch(kernel, self._grid, THREADS, grad_output, x, mean, invvar, *view, pieces)

    def launch_output(self, launch, x, mean, invvar, weight, bias, output):
        """output = x̂ weight + bias."""
        kernel = build_output(accumulator(invvar), self.width, self.applied)
        self._apply(launch, kernel, x, mean, invvar, weight, bias, output)

    def launch_gradient(self, launch, grad_output, x, mean, invvar, weight, mean_g, mean_gx, grad_input):
        """grad_input; mean_g, mean_gx: (batches · sets,), or None where the statistics do not depend on x."""
        kernel = build_gradient(accumulator(invvar), self.width, self.applied)
        self._apply(launch, kernel, grad_output, x, mean, invvar, weight, mean_g, mean_gx, grad_input)

    @property
    def _grid(self) -> int:
        return -(-(self.pieces.size << self.levels) // THREADS)

    def _apply(self, launch, kernel, *arguments):
        lines, channels, _ = self.sets.shape
        down = APPLY_THREADS // self.across
        slices = -(-self.vectors // (self.across * self.applied))
        grid = -(-channels // down), min(lines, GRID_LIMIT), slices
        view = np.int64(self.sets.outer), np.int64(self.sets.sets)
        launch(kernel, grid, (self.across, down), *arguments[:-1], *view, arguments[-1])


@cache
def build_moments(dtype, width, turns, levels):
    """A team of 2**levels lanes a piece, `turns` vectors a lane."""
    seats, elements, team_sum = 1 << levels, turns * width, seats_sum(levels)

    @cuda.jit
    def family_plane_moments(x, parts, pieces):
        values = cuda.local.array(elements, dtype)
        piece = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) >> levels
        vectors = x.shape[2] // width
        line = piece // parts
        first = piece % parts * vectors // parts
        end = (piece % parts + 1) * vectors // parts
        if line >= x.shape[0] * x.shape[1]:
            end = first  # nothing to load, but the shuffles need everybody
        start = first + (cuda.threadIdx.x & (seats - 1))
        total = cast(0, pieces)
        for v in range(turns):
            if start + v * seats < end:
                at = (line // x.shape[1], line % x.shape[1], (start + v * seats) * width)
                load_vector_into(values, v * width, x, at, width)
                for k in range(width):
                    total += values[v * width + k]
        count = cast(max(end - first, 1) * width, pieces)
        center = team_sum(total) / count
        m2 = cast(0, pieces)
        for v in range(turns):
            if start + v * seats < end:
                for k in range(width):
                    deviation = values[v * width + k] - center
                    m2 += deviation * deviation
        m2 = team_sum(m2)
        if first < end and start == first:
            store(pieces, (0, piece), center)
            store(pieces, (1, piece), m2)
            store(pieces, (2, piece), count)

    return family_plane_moments


@cache
def build_sums(dtype, width, turns, levels):
    """As `build_moments`: the sums of dy and dy x̂."""
    seats, team_sum = 1 << levels, seats_sum(levels)

    @cuda.jit
    def family_plane_sums(grad_output, x, mean, invvar, outer, sets, parts, pieces):
        grads = cuda.local.array(width, dtype)
        values = cuda.local.array(width, dtype)
        piece = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) >> levels
        vectors = x.shape[2] // width
        line = piece // parts
        first = piece % parts * vectors // parts
        end = (piece % parts + 1) * vectors // parts
        center = cast(0, pieces)
        scale = cast(0, pieces)
        if line >= x.shape[0] * x.shape[1]:
            end = first  # nothing to load, but the shuffles need everybody
        else:
            index = line // x.shape[1] // outer * sets + line % x.shape[1] // (x.shape[1] // sets)
            center = load(mean, index)
            scale = load(invvar, index)
        start = first + (cuda.threadIdx.x & (seats - 1))
        sum_grad = cast(0, pieces)
        sum_product = cast(0, pieces)
        for v in range(turns):
            if start + v * seats < end:
                at = (line // x.shape[1], line % x.shape[1], (start + v * seats) * width)
                load_vector_into(grads, 0, grad_output, at, width)
                load_vector_into(values, 0, x, at, width)
                for k in range(width):
                    sum_grad += grads[k]
                    sum_product += grads[k] * normalised_from_input(values[k], center, scale)
        sum_grad = team_sum(sum_grad)
        sum_product = team_sum(sum_product)
        if first < end and start == first:
            store(pieces, (0, piece), sum_grad)
            store(pieces, (1, piece), sum_product)

    return family_plane_sums


@cache
def build_output(dtype, width, turns):
    """Block (across, down): a line each `down`, `turns` vectors a thread."""
    elements = turns * width

    @cuda.jit
    def family_plane_output(x, mean, invvar, weight, bias, outer, sets, output):
        values = cuda.local.array(elements, dtype)
        channel = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        start = (cuda.blockIdx.z * turns * cuda.blockDim.x + cuda.threadIdx.x) * width
        span = cuda.blockDim.x * width
        if channel < x.shape[1]:
            gamma = element(weight, channel)
            beta = element(bias, channel)
            line = cuda.blockIdx.y
            while line < x.shape[0]:
                index = line // outer * sets + channel // (x.shape[1] // sets)
                center = load(mean, index)
                scale = load(invvar, index)
                for v in range(turns):  # all loads before the first store, behind which the compiler keeps them
                    if start + v * span < x.shape[2]:
                        load_vector_into(values, v * width, x, (line, channel, start + v * span), width)
                for v in range(turns):
                    if start + v * span < x.shape[2]:
                        for k in range(width):
                            value = normalised_from_input(values[v * width + k], center, scale)
                            values[v * width + k] = affine(value, gamma, beta)
                        store_vector_from(output, (line, channel, start + v * span), values, v * width, width)
                line += cuda.gridDim.y

    return family_plane_output


@cache
def build_gradient(dtype, width, turns):
    """As `build_output`: grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, g = dy gamma."""
    elements = turns * width

    @cuda.jit
    def family_plane_gradient(grad_output, x, mean, invvar, weight, mean_g, mean_gx, outer, sets, grad_input):
        grads = cuda.local.array(elements, dtype)
        values = cuda.local.array(elements, dtype)
        channel = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        start = (cuda.blockIdx.z * turns * cuda.blockDim.x + cuda.threadIdx.x) * width
        span = cuda.blockDim.x * width
        if channel < x.shape[1]:
            gamma = element(weight, channel)
            line = cuda.blockIdx.y
            while line < x.shape[0]:
                index = line // outer * sets + channel // (x.shape[1] // sets)
                center = load(mean, index)
                scale = load(invvar, index)
                for v in range(turns):
                    if start + v * span < x.shape[2]:
                        load_vector_into(grads, v * width, grad_output, (line, channel, start + v * span), width)
                        if mean_g is not None:
                            load_vector_into(values, v * width, x, (line, channel, start + v * span), width)
                for v in range(turns):
                    if start + v * span < x.shape[2]:
                        for k in range(width):
                            gradient = affine(grads[v * width + k], gamma, None)
                            if mean_g is not None:
                                xhat = normalised_from_input(values[v * width + k], center, scale)
                                gradient = gradient - load(mean_g, index) - xhat * load(mean_gx, index)
                            grads[v * width + k] = gradient * scale
                        store_vector_from(grad_input, (line, channel, start + v * span), grads, v * width, width)
                line += cuda.gridDim.y

    return family_plane_gradient
