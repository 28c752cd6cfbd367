"""Merge the pieces of each set: the second kernel of each pass, the same for all norms and for planes and columns.

A set is the values that share a mean and a variance; a piece is a part of them whose moments or sums the first kernel
has written. Pieces lie in memory as (batches, outer, sets, inner), as `sets.Pieces` says: set s of batch b has those at
[b, :, s, :]. Sets are numbered through all batches.

Idea: each set has a lane group: a few lanes, a warp or a whole block, with one lane per piece up to MAX_LANES. Each
lane merges its pieces, then the group merges its lanes: moments by Chan's formula, sums by addition. The order depends
on the shape alone, so the bits do not change from run to run.
Moves: 12 bytes per piece of up to 1024 values.
Bound by: latency.

The pieces may be parts of an image, images of a batch or batches of several machines: distributed batch norm merges
its own (mean, m2, count) here to a message, and the ranks' messages by `normlab.kernels.ranks`.
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

THREADS = 128  # per block with several lane groups
MAX_LANES = 1024  # per group; one lane per piece up to it, because a second load takes longer than a barrier


@cache
def set_merger(dtype, lanes):
    """Return the device function `merge_set` for lane groups of `lanes` lanes, a power of two."""
    threads, warps, shift = threads_for(lanes), max(1, lanes // 32), lanes.bit_length() - 1  # 2**shift lanes
    group_moments = lane_group_moments(levels_for(lanes))

    @cuda.jit(device=True)
    def merge_set(pieces, outer, sets, inner, total):
        """Return (index, mean, m2, count) of this lane group's set, in its first lane; index: -1 in all other lanes.

        total: the number of sets; otherwise as `family_merge_moments`. All threads of a block call it together.
        """
        # Prologue: lane group `index` has the set of that number, and the lane its piece number `item`.
        buffer = cuda.shared.array((3, warps), dtype)
        index = (cuda.blockIdx.x * threads + cuda.threadIdx.x) >> shift
        live = index < total  # false in the last block's spare groups, which must still reach the barriers
        batch = index // sets
        center = cast(0, pieces)
        m2 = cast(0, pieces)
        count = cast(0, pieces)
        item = cuda.threadIdx.x & (lanes - 1)
        launch_dependents()  # the pass's third kernel may start now, and fetch x while this one merges
        grid_dependency_sync()  # the first kernel has written all pieces before a lane loads one

        # Merge: each lane its own pieces in turn, then the lanes of a group within a warp, then the warps of a block.
        while live and item < outer * inner:
            # (batch, item // inner, index % sets, item % inner) in the pieces' four dimensions
            at = ((batch * outer + item // inner) * sets + index % sets) * inner + item % inner
            center, m2, count = chan_merge(
                center, m2, count, load(pieces, (0, at)), load(pieces, (1, at)), load(pieces, (2, at))
            )
            item += lanes
        center, m2, count = group_moments(center, m2, count)
        if warps > 1:
            center, m2, count = block_moments(center, m2, count, buffer)
        if not live or cuda.threadIdx.x & (lanes - 1):
            index = -1
        return index, center, m2, count

    return merge_set


@cache
def build_moments(dtype, lanes):
    """Return the kernel `family_merge_moments` for lane groups of `lanes` lanes, a power of two."""
    merge_set = set_merger(dtype, lanes)

    @cuda.jit
    def family_merge_moments(pieces, outer, sets, inner, eps, mean, variance, invvar):
        """Merge the moments of every set; arguments as for `launch_moments`, outer, sets, inner as in `Pieces`."""
        index, center, m2, count = merge_set(pieces, outer, sets, inner, mean.shape[0])
        if index >= 0:
            store(mean, index, center)
            store(invvar, index, float32(1) / math.sqrt(m2 / count + eps))
            if variance is not None:  # unbiased, for the running statistics
                store(variance, index, m2 / (count - float32(1)))

    return family_merge_moments


@cache
def build_message(dtype, lanes):
    """Return the kernel `family_merge_message` for lane groups of `lanes` lanes, a power of two."""
    merge_set = set_merger(dtype, lanes)

    @cuda.jit
    def family_merge_message(pieces, outer, sets, inner, total, message):
        """Merge the moments of every set into a message for other ranks; arguments as for `launch_message`."""
        index, center, m2, count = merge_set(pieces, outer, sets, inner, total)
        if index >= 0:
            store(message, 1 + index, center)
            store(message, 1 + total + index, m2)
            if index == 0:
                store(message, 0, count)

    return family_merge_message


@cache
def build_sums(dtype, lanes):
    """Return the kernel `family_merge_sums` for lane groups of `lanes` lanes, a power of two."""
    threads, warps, shift = threads_for(lanes), max(1, lanes // 32), lanes.bit_length() - 1
    group_sum = lane_group_sum(levels_for(lanes))

    @cuda.jit
    def family_merge_sums(
        pieces, count, outer, sets, inner, slices, weight, set_weight, divisor, first, second, total_first, total_second
    ):
        """Add up both sums of every set; arguments as for `launch_sums`, outer, sets, inner, slices as in `Pieces`.

        count: sets. weight: gamma per channel, which each piece is multiplied by before it is added. set_weight: gamma
        per set, by which `first` and `second` are multiplied after the addition; total_first and total_second get the
        sums without it. At most one of the two weights is given.
        """
        # Prologue: as in `family_merge_moments`.
        buffer = cuda.shared.array((2, warps), dtype)
        index = (cuda.blockIdx.x * threads + cuda.threadIdx.x) >> shift
        live = index < count
        batch = index // sets
        sum_first = cast(0, pieces)
        sum_second = cast(0, pieces)
        item = cuda.threadIdx.x & (lanes - 1)
        launch_dependents()  # the pass's third kernel may start now, and fetch x while this one adds up
        grid_dependency_sync()  # the first kernel has written all pieces before a lane loads one

        # Add up: each lane its own pieces in turn, then the lanes of a group within a warp, then the warps of a block.
        while live and item < outer * inner:
            at = ((batch * outer + item // inner) * sets + index % sets) * inner + item % inner
            # gamma of the piece's channel: `inner` pieces of a set are `slices` pieces for each of its channels
            gamma = element(weight, (index % sets) * (inner // slices) + item % inner // slices)
            sum_first += affine(load(pieces, (0, at)), gamma, None)
            sum_second += affine(load(pieces, (1, at)), gamma, None)
            item += lanes
        sum_first = group_sum(sum_first)
        sum_second = group_sum(sum_second)
        if warps > 1:
            sum_first, sum_second = block_sums(sum_first, sum_second, buffer)

        # Epilogue: the first lane of each group stores its set's results.
        if live and cuda.threadIdx.x & (lanes - 1) == 0:
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
    kernel = build_moments(accumulator(mean), lanes_for(shape))
    launch(kernel, *_blocks(shape), pieces, *_view(shape), eps, mean, variance, invvar)


def launch_message(launch, pieces, shape: Pieces, message):
    """Queue the kernel that merges the moments of every set into one message for the other ranks of a group.

    pieces: as for `launch_moments`. message: (1 + 2 sets,), as `normlab.kernels.ranks` describes it.
    """
    total = np.int64(shape.batches * shape.sets)
    kernel = build_message(accumulator(message), lanes_for(shape))
    launch(kernel, *_blocks(shape), pieces, *_view(shape), total, message)


def launch_sums(launch, pieces, shape: Pieces, weight, divisor: int, first, second, totals=None):
    """Queue the kernel that adds up both sums of every set and divides them by `divisor`.

    pieces: (2, shape.size). weight: gamma per channel, by which the pieces are multiplied, or None. first, second:
    (sets,), any floating dtype; one may be None. totals: None, or, where each set is one channel, two such arrays that
    get the sums without weight and divisor. With totals the weight is therefore applied after the addition.
    """
    count = np.int64(shape.batches * shape.sets)
    view = *_view(shape), np.int64(shape.slices)
    weights, totals = ((weight, None), (None, None)) if totals is None else ((None, weight), totals)
    kernel, scalar = build_sums(accumulator(pieces), lanes_for(shape)), pieces.dtype.type(divisor)
    launch(kernel, *_blocks(shape), pieces, count, *view, *weights, scalar, first, second, *totals)


def _view(shape: Pieces) -> tuple:
    """Return outer, sets and inner as kernels take them."""
    return np.int64(shape.outer), np.int64(shape.sets), np.int64(shape.inner)


def lanes_for(shape: Pieces) -> int:
    """Return the number of lanes per group: a power of two with one lane per piece, at most MAX_LANES."""
    return min(MAX_LANES, 1 << (shape.items - 1).bit_length())


def threads_for(lanes: int) -> int:
    """Return the number of threads per block; a lane group of several warps has a block to itself."""
    return lanes if lanes > 32 else THREADS


def _blocks(shape: Pieces) -> tuple[int, int]:
    """Return grid and block."""
    lanes = lanes_for(shape)
    threads = threads_for(lanes)
    return -(-(shape.batches * shape.sets * lanes) // threads), threads


def merges(shape: Pieces) -> int:
    """Return the largest number of merges that a piece goes through: in its lane, then between lanes and warps."""
    lanes = lanes_for(shape)
    return -(-shape.items // lanes) - 1 + (lanes - 1).bit_length()
