"""Normalise planes, runs of neighbouring values of one channel, as in N C *spatial. Lanes take neighbouring values.

Idea: a group of lanes (`Team`) holds a piece in registers: a channel's plane or a part of it, or the same part of a few
short planes. It computes the piece's mean and then its squared deviations; `merge` merges the pieces of a set.
Moves: x twice and the output once; backward: both arrays twice and grad_input once. The last kernel of a pass begins
with the last pieces, which are still in L2.
Bound by: memory. There is no shared memory and no barrier.

Arrays are (batches · outer, parameters, run); statistics (batches · sets,); parameters (sets · channels,) or None.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from normlab.engine import (
    accumulator,
    cast,
    cuda,
    grid_dependency_sync,
    launch_dependents,
    load,
    load_vector_into,
    store,
    store_vector_from,
)
from normlab.kernels.family.sets import Pieces, Sets
from normlab.stages.lane_groups import MOST, lane_group_sum
from normlab.stages.recompute import affine, element, normalised_from_input
from normlab.stages.vector import widest

THREADS = 128  # per block of the first kernels
HELD = 32  # values per lane that registers hold at most
IN_FLIGHT = 64  # bytes of each array that a lane of the sums' kernel loads before it adds them up and drops them
APPLY_THREADS = 256  # per block of the last kernels
APPLIED = 32  # values per thread of the last kernel at most, forward
APPLIED_OF_TWO = 16  # and backward, of each of the two arrays


class Team(NamedTuple):
    """The thread map of a plane: `seats` threads, a power of two, take `turns` vectors each from `lines` planes.

    A plane has `parts` parts of `length` vectors; the last part may be shorter.
    """

    seats: int
    turns: int
    lines: int
    length: int
    parts: int

    @property
    def units(self) -> int:
        """Return the number of vectors per thread."""
        return self.turns * self.lines


def team_for(sets: Sets, vectors: int, most_seats: int, most_units: int) -> Team:
    """Return the team for planes of `vectors` vectors, with at most `most_seats` threads of `most_units` vectors."""
    parts = -(-vectors // (most_seats * most_units))
    length = -(-vectors // parts)
    seats = min(most_seats, 1 << (length - 1).bit_length())
    turns = -(-length // seats)
    return Team(seats, turns, max(1, min(sets.outer, most_units // turns)), length, -(-vectors // length))


class Planes:
    """The kernels of one view of x; `arrays` are all that are read or written along a run."""

    def __init__(self, sets: Sets, *arrays):
        self.sets = sets
        self.width = widest(sets.run, *arrays)
        vectors = sets.run // self.width
        self.finding = team_for(sets, vectors, 1 << MOST, HELD // self.width)
        self.forward = team_for(sets, vectors, APPLY_THREADS, APPLIED // self.width)
        self.backward = team_for(sets, vectors, APPLY_THREADS, APPLIED_OF_TWO // self.width)

    @property
    def pieces(self) -> Pieces:
        """Return the shape of the pieces that the first kernels write."""
        batches, outer, sets, channels, _ = self.sets
        team = self.finding
        terms, levels = team.units * self.width, (team.seats - 1).bit_length()
        return Pieces(batches, -(-outer // team.lines), sets, channels * team.parts, team.parts, terms, levels)

    def launch_moments(self, launch, x, pieces):
        """Queue the kernel for the moments of all pieces; pieces: (3, self.pieces.size)."""
        kernel = build_moments(accumulator(pieces), self.width, self.finding)
        launch(kernel, *self._blocks(self.finding, THREADS), x, np.int64(self.sets.outer), pieces)

    def launch_sums(self, launch, grad_output, x, mean, invvar, pieces):
        """Queue the kernel for the sums of dy and dy x̂ of all pieces; pieces: (2, self.pieces.size)."""
        once = max(1, IN_FLIGHT // (self.width * x.dtype.itemsize))
        kernel = build_sums(accumulator(pieces), self.width, self.finding, once)
        launch(kernel, *self._blocks(self.finding, THREADS), grad_output, x, mean, invvar, *self._view, pieces)

    def launch_output(self, launch, x, mean, invvar, weight, bias, output):
        """Queue the kernel for output = x̂ weight + bias."""
        kernel = build_output(accumulator(invvar), self.width, self.forward)
        blocks = self._blocks(self.forward, APPLY_THREADS)
        launch(kernel, *blocks, x, mean, invvar, weight, bias, *self._view, output)

    def launch_gradient(self, launch, grad_output, x, mean, invvar, weight, mean_g, mean_gx, grad_input):
        """Queue the kernel for grad_input.

        mean_g, mean_gx: (batches · sets,), or None where the statistics do not depend on x.
        """
        kernel = build_gradient(accumulator(invvar), self.width, self.backward)
        blocks = self._blocks(self.backward, APPLY_THREADS)
        launch(kernel, *blocks, grad_output, x, mean, invvar, weight, mean_g, mean_gx, *self._view, grad_input)

    def _blocks(self, team: Team, threads: int) -> tuple:
        """Return grid and block. Blocks go through memory in order: parts, then channels, then lines."""
        batches, outer, *_ = self.sets
        bundles = -(-self.sets.parameters // (threads // team.seats))
        return batches * -(-outer // team.lines) * bundles * team.parts, (team.seats, threads // team.seats)

    @property
    def _view(self) -> tuple:
        return np.int64(self.sets.outer), np.int64(self.sets.sets)


@cache
def finder(width, team, teams):
    """Return the device function `find(number, x, outer)`, which says what a team in block `number` works on.

    It returns (group of lines, first line, line after the last, channel, part, the thread's first vector, the vector
    after the team's last). A channel that does not exist has no lines.
    """
    lines, length, parts = team.lines, team.length, team.parts

    @cuda.jit(device=True)
    def find(number, x, outer):
        part = number % parts
        bundles = (x.shape[1] + teams - 1) // teams
        group = number // parts // bundles
        channel = (number // parts - group * bundles) * teams + cuda.threadIdx.y
        groups = (outer + lines - 1) // lines
        batch = group // groups
        line = batch * outer + (group - batch * groups) * lines
        last = min(line + lines, (batch + 1) * outer)
        if channel >= x.shape[1]:
            last = line
        return (
            group,
            line,
            last,
            channel,
            part,
            part * length + cuda.threadIdx.x,
            min((part + 1) * length, x.shape[2] // width),
        )

    return find


@cache
def build_moments(dtype, width, team):
    """Return the kernel `family_plane_moments`. Block (seats, THREADS / seats), one piece per team."""
    seats, turns, _, length, parts = team
    units = team.units
    elements, team_sum = units * width, lane_group_sum((seats - 1).bit_length())
    find = finder(width, team, THREADS // seats)

    @cuda.jit
    def family_plane_moments(x, outer, pieces):
        launch_dependents()  # the merging kernel may start early; it waits for this one's results
        values = cuda.local.array(elements, dtype)
        group, line, last, channel, part, start, end = find(cuda.blockIdx.x, x, outer)
        # Fetch: all loads are in flight before the first value is used.
        for u in range(units):
            at = start + u % turns * seats
            if line + u // turns < last and at < end:
                load_vector_into(values, u * width, x, (line + u // turns, channel, at * width), width)
            else:
                for k in range(width):
                    values[u * width + k] = cast(0, pieces)
        # First pass, over registers: the piece's mean. Absent values are 0 and not counted.
        total = cast(0, pieces)
        for k in range(elements):
            total += values[k]
        count = cast(max(last - line, 1) * (end - part * length) * width, pieces)
        center = team_sum(total) / count
        # Second pass, over registers: the squared deviations of the values that exist.
        m2 = cast(0, pieces)
        for u in range(units):
            if line + u // turns < last and start + u % turns * seats < end:
                for k in range(width):
                    deviation = values[u * width + k] - center
                    m2 += deviation * deviation
        m2 = team_sum(m2)
        if line < last and cuda.threadIdx.x == 0:
            piece = (group * x.shape[1] + channel) * parts + part
            store(pieces, (0, piece), center)
            store(pieces, (1, piece), m2)
            store(pieces, (2, piece), count)

    return family_plane_moments


@cache
def build_sums(dtype, width, team, once):
    """Return the kernel `family_plane_sums`, for the sums of dy and dy x̂; it loads `once` vectors at a time."""
    seats, turns, _, _, parts = team
    units = team.units
    once = min(once, units)
    elements, team_sum = once * width, lane_group_sum((seats - 1).bit_length())
    find = finder(width, team, THREADS // seats)

    @cuda.jit
    def family_plane_sums(grad_output, x, mean, invvar, outer, sets, pieces):
        launch_dependents()
        grads = cuda.local.array(elements, dtype)
        values = cuda.local.array(elements, dtype)
        group, line, last, channel, part, start, end = find(cuda.blockIdx.x, x, outer)
        center = cast(0, pieces)
        scale = cast(0, pieces)
        if line < last:
            index = line // outer * sets + channel // (x.shape[1] // sets)
            center = load(mean, index)
            scale = load(invvar, index)
        sum_grad = cast(0, pieces)
        sum_product = cast(0, pieces)
        for first in range(0, units, once):
            # Fetch `once` vectors of both arrays, add them up, drop them.
            for j in range(once):
                u = first + j
                at = start + u % turns * seats
                if u < units and line + u // turns < last and at < end:
                    load_vector_into(grads, j * width, grad_output, (line + u // turns, channel, at * width), width)
                    load_vector_into(values, j * width, x, (line + u // turns, channel, at * width), width)
                else:
                    for k in range(width):
                        grads[j * width + k] = cast(0, pieces)
                        values[j * width + k] = center  # x̂ = 0
            for k in range(elements):
                sum_grad += grads[k]
                sum_product += grads[k] * normalised_from_input(values[k], center, scale)
        sum_grad = team_sum(sum_grad)
        sum_product = team_sum(sum_product)
        if line < last and cuda.threadIdx.x == 0:
            piece = (group * x.shape[1] + channel) * parts + part
            store(pieces, (0, piece), sum_grad)
            store(pieces, (1, piece), sum_product)

    return family_plane_sums


@cache
def build_output(dtype, width, team):
    """Return the kernel `family_plane_output`.

    Block (seats, APPLY_THREADS / seats). The first block takes the end of memory, which L2 still holds.
    """
    seats, turns = team.seats, team.turns
    units = team.units
    elements = units * width
    find = finder(width, team, APPLY_THREADS // seats)

    @cuda.jit
    def family_plane_output(x, mean, invvar, weight, bias, outer, sets, output):
        values = cuda.local.array(elements, dtype)
        _, line, last, channel, _, start, end = find(cuda.gridDim.x - 1 - cuda.blockIdx.x, x, outer)
        if line < last:
            # Fetch: all loads before the first store, because the compiler moves no load across a store.
            for u in range(units):
                at = start + u % turns * seats
                if line + u // turns < last and at < end:
                    load_vector_into(values, u * width, x, (line + u // turns, channel, at * width), width)
            grid_dependency_sync()  # the previous kernel's statistics are there; it does not write x
            index = line // outer * sets + channel // (x.shape[1] // sets)
            center = load(mean, index)
            scale = load(invvar, index)
            gamma = element(weight, channel)
            beta = element(bias, channel)
            # Normalise and store.
            for u in range(units):
                at = start + u % turns * seats
                if line + u // turns < last and at < end:
                    for k in range(width):
                        value = normalised_from_input(values[u * width + k], center, scale)
                        values[u * width + k] = affine(value, gamma, beta)
                    store_vector_from(output, (line + u // turns, channel, at * width), values, u * width, width)

    return family_plane_output


@cache
def build_gradient(dtype, width, team):
    """Return the kernel `family_plane_gradient`: grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, g = dy gamma.

    Its blocks are those of `build_output`.
    """
    seats, turns = team.seats, team.turns
    units = team.units
    elements = units * width
    find = finder(width, team, APPLY_THREADS // seats)

    @cuda.jit
    def family_plane_gradient(grad_output, x, mean, invvar, weight, mean_g, mean_gx, outer, sets, grad_input):
        grads = cuda.local.array(elements, dtype)
        values = cuda.local.array(elements, dtype)
        if mean_g is None:  # the first kernel of its operation: another operation's kernel wrote dy
            grid_dependency_sync()
        _, line, last, channel, _, start, end = find(cuda.gridDim.x - 1 - cuda.blockIdx.x, x, outer)
        if line < last:
            # Fetch: all loads before the first store.
            for u in range(units):
                at = start + u % turns * seats
                if line + u // turns < last and at < end:
                    load_vector_into(grads, u * width, grad_output, (line + u // turns, channel, at * width), width)
                    if mean_g is not None:
                        load_vector_into(values, u * width, x, (line + u // turns, channel, at * width), width)
            grid_dependency_sync()  # the previous kernel's means are there; it writes neither x nor dy
            index = line // outer * sets + channel // (x.shape[1] // sets)
            center = load(mean, index)
            scale = load(invvar, index)
            first = element(mean_g, index)
            second = element(mean_gx, index)
            gamma = element(weight, channel)
            # Compute and store.
            for u in range(units):
                at = start + u % turns * seats
                if line + u // turns < last and at < end:
                    for k in range(width):
                        gradient = affine(grads[u * width + k], gamma, None)
                        if mean_g is not None:
                            xhat = normalised_from_input(values[u * width + k], center, scale)
                            gradient = gradient - first - xhat * second
                        grads[u * width + k] = gradient * scale
                    store_vector_from(grad_input, (line + u // turns, channel, at * width), grads, u * width, width)

    return family_plane_gradient
