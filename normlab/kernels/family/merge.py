"""Merge the pieces of each set: the second kernel of each pass, the same for all norms and for planes and columns.

Idea: a team of lanes takes a set, with one lane per piece: a few lanes, a warp or a whole block. It merges the moments
by Chan's formula in an order that depends on the shape alone, so the bits do not change from run to run.
Moves: 12 bytes per piece of up to 1024 values.
Bound by: latency.

The pieces may be parts of an image, images of a batch or batches of several machines: distributed batch norm merges
(mean, m2, count) with the same kernel.
"""

import math
from functools import cache

import numpy as np

from normlab.engine import accumulator, cast, cuda, float32, grid_dependency_sync, launch_dependents, load, store
from normlab.kernels.family.sets import Pieces
from normlab.stages.block import block_moments, block_sums
from normlab.stages.lane_groups import lane_group_moments, lane_group_sum, levels_for
from normlab.stages.moments import chan_merge
from normlab.stages.recompute import affine, element

THREADS = 128  # per block with several teams
MAX_SEATS = 1024  # lanes per team; one lane per piece up to it, because a second load takes longer than a barrier


@cache
def build_moments(dtype, seats):
    """Return the kernel `family_merge_moments` for teams of `seats` lanes, a power of two."""
    threads, warps, shift = threads_for(seats), max(1, seats // 32), seats.bit_length() - 1
    team_moments = lane_group_moments(levels_for(seats))

    @cuda.jit
    def family_merge_moments(pieces, outer, sets, inner, eps, mean, variance, invvar):
        buffer = cuda.shared.array((3, warps), dtype)
        index = (cuda.blockIdx.x * threads + cuda.threadIdx.x) >> shift
        live = index < mean.shape[0]
        batch = index // sets
        center = cast(0, mean)
        m2 = cast(0, mean)
        count = cast(0, mean)
        item = cuda.threadIdx.x & (seats - 1)
        launch_dependents()  # the last kernel may start early and fetch x
        grid_dependency_sync()  # the first kernel's pieces are there

        # Each lane merges its own pieces in turn, then the lanes of a team, then the warps of a block.
        while live and item < outer * inner:
            at = ((batch * outer + item // inner) * sets + index % sets) * inner + item % inner
            center, m2, count = chan_merge(
                center, m2, count, load(pieces, (0, at)), load(pieces, (1, at)), load(pieces, (2, at))
            )
            item += seats
        center, m2, count = team_moments(center, m2, count)
        if warps > 1:
            center, m2, count = block_moments(center, m2, count, buffer)
        if live and cuda.threadIdx.x & (seats - 1) == 0:
            store(mean, index, center)
            store(invvar, index, float32(1) / math.sqrt(m2 / count + eps))
            if variance is not None:  # unbiased, for the running statistics
                store(variance, index, m2 / (count - float32(1)))

    return family_merge_moments


@cache
def build_sums(dtype, seats):
    """Return the kernel `family_merge_sums` for teams of `seats` lanes, a power of two."""
    threads, warps, shift = threads_for(seats), max(1, seats // 32), seats.bit_length() - 1
    team_sum = lane_group_sum(levels_for(seats))

    @cuda.jit
    def family_merge_sums(
        pieces, count, outer, sets, inner, parts, weight, set_weight, divisor, first, second, total_first, total_second
    ):
        buffer = cuda.shared.array((2, warps), dtype)
        index = (cuda.blockIdx.x * threads + cuda.threadIdx.x) >> shift
        live = index < count
        batch = index // sets
        sum_first = cast(0, pieces)
        sum_second = cast(0, pieces)
        item = cuda.threadIdx.x & (seats - 1)
        launch_dependents()  # the last kernel may start early and fetch x
        grid_dependency_sync()  # the first kernel's pieces are there

        # Each lane merges its own pieces in turn, then the lanes of a team, then the warps of a block.
        while live and item < outer * inner:
            at = ((batch * outer + item // inner) * sets + index % sets) * inner + item % inner
            gamma = element(weight, (index % sets) * (inner // parts) + item % inner // parts)
            sum_first += affine(load(pieces, (0, at)), gamma, None)
            sum_second += affine(load(pieces, (1, at)), gamma, None)
            item += seats
        sum_first = team_sum(sum_first)
        sum_second = team_sum(sum_second)
        if warps > 1:
            sum_first, sum_second = block_sums(sum_first, sum_second, buffer)
        if live and cuda.threadIdx.x & (seats - 1) == 0:
            gamma = element(set_weight, index % sets)
            if first is not None:
                store(first, index, affine(sum_first, gamma, None) / divisor)
            if second is not None:
                store(second, index, affine(sum_second, gamma, None) / divisor)
            if total_first is not None:
                store(total_first, index, sum_first)
            if total_second is not None:
                store(total_second, index, sum_second)

    return family_merge_sums


def launch_moments(launch, pieces, shape: Pieces, eps, mean, variance, invvar):
    """Queue the kernel that merges the moments of every set.

    pieces: (3, shape.size): means, sums of squared deviations, counts. eps: a NumPy scalar. mean, invvar, and variance
    (unbiased; or None): (sets,), accumulator dtype.
    """
    view = (np.int64(shape.outer), np.int64(shape.sets), np.int64(shape.inner))
    kernel = build_moments(accumulator(mean), seats_for(shape))
    launch(kernel, *_blocks(shape), pieces, *view, eps, mean, variance, invvar)


def launch_sums(launch, pieces, shape: Pieces, weight, divisor: int, first, second, totals=None):
    """Queue the kernel that adds up both sums of every set and divides them by `divisor`.

    pieces: (2, shape.size). weight: the channels' factors of the pieces, or None. first, second: (sets,), any floating
    dtype; one may be None. totals: where sets are channels, two such arrays for the sums without weight and divisor.
    """
    count = np.int64(shape.batches * shape.sets)
    view = (np.int64(shape.outer), np.int64(shape.sets), np.int64(shape.inner), np.int64(shape.parts))
    weights, totals = ((weight, None), (None, None)) if totals is None else ((None, weight), totals)
    kernel, scalar = build_sums(accumulator(pieces), seats_for(shape)), pieces.dtype.type(divisor)
    launch(kernel, *_blocks(shape), pieces, count, *view, *weights, scalar, first, second, *totals)


def seats_for(shape: Pieces) -> int:
    """Return the number of lanes per team: a power of two with one lane per piece, at most MAX_SEATS."""
    return min(MAX_SEATS, 1 << (shape.items - 1).bit_length())


def threads_for(seats: int) -> int:
    """Return the number of threads per block; a team of several warps has a block to itself."""
    return seats if seats > 32 else THREADS


def _blocks(shape: Pieces) -> tuple[int, int]:
    """Return grid and block."""
    seats = seats_for(shape)
    threads = threads_for(seats)
    return -(-(shape.batches * shape.sets * seats) // threads), threads


def merges(shape: Pieces) -> int:
    """Return the number of merges that a piece goes through: in its lane, then between lanes and warps."""
    seats = seats_for(shape)
    return -(-shape.items // seats) - 1 + (seats - 1).bit_length()
