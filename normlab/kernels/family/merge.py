"""Pieces to sets: the second kernel of each pass, the same for all norms and both walks.

Moments are merged by Chan's formula, in an order that depends on the shape alone, so that the result is the same bit
for bit. Nothing here knows whether the pieces are parts of an image, images of a batch or batches of several
machines: distributed batch norm merges (mean, m2, count) like this. A team of lanes takes a set.

Moves: 12 bytes a piece of up to 1024 values. Bound by: latency.
"""

import math
from functools import cache

import numpy as np

from normlab.engine import cast, cuda, float32, load, store
from normlab.kernels.family.sets import Pieces
from normlab.stages.moments import chan_merge
from normlab.stages.recompute import affine, element
from normlab.stages.seats import levels_for, seats_moments, seats_sum

THREADS = 128


@cache
def build_moments(levels):
    """The kernel for teams of 2**levels lanes."""
    seats, team_moments = 1 << levels, seats_moments(levels)

    @cuda.jit
    def family_merge_moments(pieces, outer, sets, inner, eps, mean, variance, invvar):
        index = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) >> levels
        live = index < mean.shape[0]
        batch = index // sets
        center = cast(0, mean)
        m2 = cast(0, mean)
        count = cast(0, mean)
        item = cuda.threadIdx.x & (seats - 1)
        while live and item < outer * inner:
            at = ((batch * outer + item // inner) * sets + index % sets) * inner + item % inner
            center, m2, count = chan_merge(
                center, m2, count, load(pieces, (0, at)), load(pieces, (1, at)), load(pieces, (2, at))
            )
            item += seats
        center, m2, count = team_moments(center, m2, count)
        if live and cuda.threadIdx.x & (seats - 1) == 0:
            store(mean, index, center)
            store(invvar, index, float32(1) / math.sqrt(m2 / count + eps))
            if variance is not None:
                store(variance, index, m2 / (count - float32(1)))

    return family_merge_moments


@cache
def build_sums(levels):
    """The kernel for teams of 2**levels lanes."""
    seats, team_sum = 1 << levels, seats_sum(levels)

    @cuda.jit
    def family_merge_sums(pieces, count, outer, sets, inner, parts, weight, divisor, first, second):
        index = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) >> levels
        live = index < count
        batch = index // sets
        sum_first = cast(0, pieces)
        sum_second = cast(0, pieces)
        item = cuda.threadIdx.x & (seats - 1)
        while live and item < outer * inner:
            at = ((batch * outer + item // inner) * sets + index % sets) * inner + item % inner
            gamma = element(weight, (index % sets) * (inner // parts) + item % inner // parts)
            sum_first += affine(load(pieces, (0, at)), gamma, None)
            sum_second += affine(load(pieces, (1, at)), gamma, None)
            item += seats
        sum_first = team_sum(sum_first)
        sum_second = team_sum(sum_second)
        if live and cuda.threadIdx.x & (seats - 1) == 0:
            if first is not None:
                store(first, index, sum_first / divisor)
            if second is not None:
                store(second, index, sum_second / divisor)

    return family_merge_sums


def launch_moments(launch, pieces, shape: Pieces, eps, mean, variance, invvar):
    """Moments of every set.

    pieces: (3, shape.size): means, sums of squared deviations, counts. eps: a NumPy scalar. mean, invvar, and variance
    (unbiased; or None): (sets,), accumulator dtype.
    """
    grid, levels = _grid(shape)
    view = (np.int64(shape.outer), np.int64(shape.sets), np.int64(shape.inner))
    launch(build_moments(levels), grid, THREADS, pieces, *view, eps, mean, variance, invvar)


def launch_sums(launch, pieces, shape: Pieces, weight, divisor: int, first, second):
    """Both sums of every set, over `divisor`.

    pieces: (2, shape.size). weight: what each piece is multiplied by, for its channel, or None. first, second: (sets,),
    any floating dtype; one may be None.
    """
    grid, levels = _grid(shape)
    count = np.int64(shape.batches * shape.sets)
    view = (np.int64(shape.outer), np.int64(shape.sets), np.int64(shape.inner), np.int64(shape.parts))
    scalar = pieces.dtype.type(divisor)
    launch(build_sums(levels), grid, THREADS, pieces, count, *view, weight, scalar, first, second)


def _grid(shape: Pieces) -> tuple[int, int]:
    """Blocks, and levels of a team."""
    levels = levels_for(shape.items)
    return -(-(shape.batches * shape.sets << levels) // THREADS), levels


def merges(shape: Pieces) -> int:
    """Merges that a piece goes through: in its lane one after another, then between lanes."""
    levels = levels_for(shape.items)
    return -(-shape.items >> levels) - 1 + levels
