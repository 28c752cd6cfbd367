"""Normalise planes, runs of neighbouring values of one channel, as in N C *spatial. Lanes take neighbouring values.

Idea: a group of lanes (`PlaneMap`) holds a piece in registers: a channel's plane or a slice of it, or the same slice of
a few short planes. It computes the piece's mean and then its squared deviations; `merge` merges the pieces of a set.
Moves: x twice and the output once; backward: both arrays twice and grad_input once. The last kernel of a pass begins
with the last pieces, which are still in L2.
Bound by: memory. There is no shared memory and no barrier.
Measured: record family_h200, and the site's speed pages.
Next: read x once where a block's registers hold a whole set (`rows`).

Arrays are (batches · outer, parameters, run); statistics (batches · sets,); parameters (sets · channels,) or None.
"""

from functools import cache
from typing import Any, NamedTuple

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
from normlab.kernels.family.operands import Gradients
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


class PlaneMap(NamedTuple):
    """The thread map of a plane: `lanes` threads, a power of two, take `turns` vectors each from `planes` planes.

    A plane has `slices` slices of `length` vectors; the last slice may be shorter. Kernels number a thread's vectors by
    u < `units`: the vector of turn u % `turns` in plane u // `turns`.
    """

    lanes: int
    turns: int
    planes: int
    length: int
    slices: int

    @property
    def units(self) -> int:
        """Return the number of vectors per thread."""
        return self.turns * self.planes


def map_planes(sets: Sets, vectors: int, most_lanes: int, most_units: int) -> PlaneMap:
    """Return the map for planes of `vectors` vectors, with at most `most_lanes` threads of `most_units` vectors."""
    slices = -(-vectors // (most_lanes * most_units))  # as few as possible, and all about as long
    length = -(-vectors // slices)
    lanes = min(most_lanes, 1 << (length - 1).bit_length())
    turns = -(-length // lanes)
    # short planes: a thread takes several of them, so that it has as many loads in flight as with long ones
    planes = max(1, min(sets.outer, most_units // turns))
    return PlaneMap(lanes, turns, planes, length, -(-vectors // length))


class Planes:
    """The kernels of one view of x, as `family` launches them; `arrays` are all that are read or written along a run.

    finding: the thread map of the kernels that find the pieces' moments or sums. forward, backward: those of the last
    kernels, which compute the elements.
    """

    def __init__(self, sets: Sets, *arrays):
        self.sets = sets
        self.width = widest(sets.run, *arrays)
        vectors = sets.run // self.width
        self.finding = map_planes(sets, vectors, 1 << MOST, HELD // self.width)  # a warp at most: no barrier
        self.forward = map_planes(sets, vectors, APPLY_THREADS, APPLIED // self.width)
        self.backward = map_planes(sets, vectors, APPLY_THREADS, APPLIED_OF_TWO // self.width)

    @property
    def pieces(self) -> Pieces:
        """Return the shape of the pieces that the first kernels write."""
        batches, outer, sets, channels, _ = self.sets
        found = self.finding
        terms, levels = found.units * self.width, (found.lanes - 1).bit_length()
        return Pieces(batches, -(-outer // found.planes), sets, channels * found.slices, found.slices, terms, levels)

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

    def launch_gradient(self, launch, one: Gradients, mean_g, mean_gx):
        """Queue the kernel for grad_input.

        mean_g, mean_gx: (batches · sets,), or None where the statistics do not depend on x.
        """
        kernel = build_gradient(accumulator(one.invvar), self.width, self.backward)
        blocks = self._blocks(self.backward, APPLY_THREADS)
        given = one.grad_output, one.x, one.mean, one.invvar, one.weight
        launch(kernel, *blocks, *given, mean_g, mean_gx, *self._view, one.grad_input)

    def _blocks(self, plane_map: PlaneMap, threads: int) -> tuple:
        """Return grid and block. Blocks go through memory in order: slices, then channels, then planes."""
        batches, outer, *_ = self.sets
        lanes = plane_map.lanes
        across = -(-self.sets.parameters // (threads // lanes))  # blocks that cover all channels
        return batches * -(-outer // plane_map.planes) * across * plane_map.slices, (lanes, threads // lanes)

    @property
    def _view(self) -> tuple:
        return np.int64(self.sets.outer), np.int64(self.sets.sets)


class Share(NamedTuple):
    """What a lane group works on: a slice of a channel's planes `plane` to `plane_end` - 1, none without a channel.

    bundle: the number of these planes, which are a bundle of `PlaneMap.planes`. number: of the slice. start: the
    thread's first vector in a plane. end: the vector after the group's last. `walker` finds the thread's vectors.
    """

    bundle: Any
    plane: Any
    plane_end: Any
    channel: Any
    number: Any
    start: Any
    end: Any


@cache
def finder(width, plane_map, groups):
    """Return the device function `find(block, x, outer)`, which returns a `Share`; groups: lane groups per block."""
    planes, length, slices = plane_map.planes, plane_map.length, plane_map.slices

    @cuda.jit(device=True)
    def find(block, x, outer):
        number = block % slices
        across = (x.shape[1] + groups - 1) // groups  # blocks that cover all channels
        bundle = block // slices // across
        channel = (block // slices - bundle * across) * groups + cuda.threadIdx.y
        bundles = (outer + planes - 1) // planes  # per batch: a bundle never reaches into the next batch
        batch = bundle // bundles
        plane = batch * outer + (bundle - batch * bundles) * planes
        plane_end = min(plane + planes, (batch + 1) * outer)
        if channel >= x.shape[1]:  # a spare lane group has no planes, but must reach the shuffles
            plane_end = plane
        start = number * length + cuda.threadIdx.x
        return Share(bundle, plane, plane_end, channel, number, start, min((number + 1) * length, x.shape[2] // width))

    return find


@cuda.jit(device=True)
def set_of(share, x, outer, sets):
    """Return the number of the set to which a share's planes belong."""
    return share.plane // outer * sets + share.channel // (x.shape[1] // sets)


@cache
def walker(width, plane_map):
    """Return two device functions for vector u of a thread: `exists(share, u)` and `index(share, u)`, its index in x.

    Some threads have fewer vectors than `PlaneMap.units`, because the slice or the planes end before.
    """
    lanes, turns = plane_map.lanes, plane_map.turns

    @cuda.jit(device=True)
    def exists(share, u):
        return share.plane + u // turns < share.plane_end and share.start + u % turns * lanes < share.end

    @cuda.jit(device=True)
    def index(share, u):
        return share.plane + u // turns, share.channel, (share.start + u % turns * lanes) * width

    return exists, index


@cache
def build_moments(dtype, width, plane_map):
    """Return the kernel `family_plane_moments`. Block (lanes, THREADS / lanes), one piece per lane group."""
    lanes, length, slices, units = plane_map.lanes, plane_map.length, plane_map.slices, plane_map.units
    elements, group_sum = units * width, lane_group_sum((lanes - 1).bit_length())
    find = finder(width, plane_map, THREADS // lanes)
    exists, index = walker(width, plane_map)

    @cuda.jit
    def family_plane_moments(x, outer, pieces):
        launch_dependents()  # the merging kernel may start early; it waits for this one's results
        values = cuda.local.array(elements, dtype)
        share = find(cuda.blockIdx.x, x, outer)
        # Fetch: all loads are in flight before the first value is used.
        for u in range(units):
            if exists(share, u):
                load_vector_into(values, u * width, x, index(share, u), width)
            else:
                for k in range(width):
                    values[u * width + k] = cast(0, pieces)
        # First pass, over registers: the piece's mean. Absent values are 0 and not counted. max: a spare group has no
        # plane, and would divide by 0.
        total = cast(0, pieces)
        for k in range(elements):
            total += values[k]
        count = cast(max(share.plane_end - share.plane, 1) * (share.end - share.number * length) * width, pieces)
        center = group_sum(total) / count
        # Second pass, over registers: the squared deviations of the values that exist.
        m2 = cast(0, pieces)
        for u in range(units):
            if exists(share, u):
                for k in range(width):
                    deviation = values[u * width + k] - center
                    m2 += deviation * deviation
        m2 = group_sum(m2)
        if share.plane < share.plane_end and cuda.threadIdx.x == 0:
            piece = (share.bundle * x.shape[1] + share.channel) * slices + share.number
            store(pieces, (0, piece), center)
            store(pieces, (1, piece), m2)
            store(pieces, (2, piece), count)

    return family_plane_moments


@cache
def build_sums(dtype, width, plane_map, once):
    """Return the kernel `family_plane_sums`, for the sums of dy and dy x̂; it loads `once` vectors at a time."""
    (lanes, turns, _, _, slices), units = plane_map, plane_map.units
    once = min(once, units)
    elements, group_sum = once * width, lane_group_sum((lanes - 1).bit_length())
    find = finder(width, plane_map, THREADS // lanes)

    @cuda.jit
    def family_plane_sums(grad_output, x, mean, invvar, outer, sets, pieces):
        launch_dependents()
        grads = cuda.local.array(elements, dtype)
        values = cuda.local.array(elements, dtype)
        share = find(cuda.blockIdx.x, x, outer)
        center = cast(0, pieces)
        scale = cast(0, pieces)
        if share.plane < share.plane_end:
            own = set_of(share, x, outer, sets)
            center = load(mean, own)
            scale = load(invvar, own)
        sum_grad = cast(0, pieces)
        sum_product = cast(0, pieces)
        for first in range(0, units, once):
            # Fetch `once` vectors of both arrays, add them up, drop them.
            for j in range(once):
                u = first + j
                # `exists` and `index` written out: in this loop of loops the calls took two registers more.
                at = share.start + u % turns * lanes
                # `once` need not divide `units`: the last round may reach past the thread's vectors
                if u < units and share.plane + u // turns < share.plane_end and at < share.end:
                    index = share.plane + u // turns, share.channel, at * width
                    load_vector_into(grads, j * width, grad_output, index, width)
                    load_vector_into(values, j * width, x, index, width)
                else:
                    for k in range(width):
                        grads[j * width + k] = cast(0, pieces)
                        values[j * width + k] = center  # x̂ = 0
            for k in range(elements):
                sum_grad += grads[k]
                sum_product += grads[k] * normalised_from_input(values[k], center, scale)
        sum_grad = group_sum(sum_grad)
        sum_product = group_sum(sum_product)
        if share.plane < share.plane_end and cuda.threadIdx.x == 0:
            piece = (share.bundle * x.shape[1] + share.channel) * slices + share.number
            store(pieces, (0, piece), sum_grad)
            store(pieces, (1, piece), sum_product)

    return family_plane_sums


@cache
def build_output(dtype, width, plane_map):
    """Return the kernel `family_plane_output`.

    Block (lanes, APPLY_THREADS / lanes). The first block takes the end of memory, which L2 still holds.
    """
    units, elements = plane_map.units, plane_map.units * width
    find = finder(width, plane_map, APPLY_THREADS // plane_map.lanes)
    exists, index = walker(width, plane_map)

    @cuda.jit
    def family_plane_output(x, mean, invvar, weight, bias, outer, sets, output):
        values = cuda.local.array(elements, dtype)
        share = find(cuda.gridDim.x - 1 - cuda.blockIdx.x, x, outer)
        if share.plane < share.plane_end:
            # Fetch: all loads before the first store, because the compiler moves no load across a store.
            for u in range(units):
                if exists(share, u):
                    load_vector_into(values, u * width, x, index(share, u), width)
            grid_dependency_sync()  # the previous kernel's statistics are there; it does not write x
            own = set_of(share, x, outer, sets)
            center = load(mean, own)
            scale = load(invvar, own)
            gamma = element(weight, share.channel)
            beta = element(bias, share.channel)
            # Normalise and store.
            for u in range(units):
                if exists(share, u):
                    for k in range(width):
                        value = normalised_from_input(values[u * width + k], center, scale)
                        values[u * width + k] = affine(value, gamma, beta)
                    store_vector_from(output, index(share, u), values, u * width, width)

    return family_plane_output


@cache
def build_gradient(dtype, width, plane_map):
    """Return the kernel `family_plane_gradient`: grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, g = dy gamma.

    Its blocks are those of `build_output`. mean_g, mean_gx: None where the statistics do not depend on x.
    """
    units, elements = plane_map.units, plane_map.units * width
    find = finder(width, plane_map, APPLY_THREADS // plane_map.lanes)
    exists, index = walker(width, plane_map)

    @cuda.jit
    def family_plane_gradient(grad_output, x, mean, invvar, weight, mean_g, mean_gx, outer, sets, grad_input):
        grads = cuda.local.array(elements, dtype)
        values = cuda.local.array(elements, dtype)
        if mean_g is None:  # the first kernel of its operation: another operation's kernel wrote dy
            grid_dependency_sync()
        share = find(cuda.gridDim.x - 1 - cuda.blockIdx.x, x, outer)
        if share.plane < share.plane_end:
            # Fetch: all loads before the first store.
            for u in range(units):
                if exists(share, u):
                    load_vector_into(grads, u * width, grad_output, index(share, u), width)
                    if mean_g is not None:
                        load_vector_into(values, u * width, x, index(share, u), width)
            grid_dependency_sync()  # the previous kernel's means are there; it writes neither x nor dy
            own = set_of(share, x, outer, sets)
            center = load(mean, own)
            scale = load(invvar, own)
            first = element(mean_g, own)
            second = element(mean_gx, own)
            gamma = element(weight, share.channel)
            # Compute and store.
            for u in range(units):
                if exists(share, u):
                    for k in range(width):
                        gradient = affine(grads[u * width + k], gamma, None)
                        if mean_g is not None:
                            xhat = normalised_from_input(values[u * width + k], center, scale)
                            gradient = gradient - first - xhat * second
                        grads[u * width + k] = gradient * scale
                    store_vector_from(grad_input, index(share, u), grads, u * width, width)

    return family_plane_gradient
