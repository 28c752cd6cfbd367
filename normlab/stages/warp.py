"""Reduce the 32 lanes of a warp to one value by shuffles, without memory. All 32 lanes call a stage together.

There are two patterns. The butterfly pairs lane i with lane i xor 16, 8, 4, 2, 1. The rotation, of apex's forward,
pairs lane i with lane (i + 1, 2, 4, 8, 16) mod 32. Both need five steps, after which every lane has merged all 32.
Rounding depends on the order: after a rotation the lanes' last digits may differ, so kernels use lane 0's result. A
butterfly of a commutative operation gives every lane the same bits. `lanes_sum` is a butterfly over some of the lanes,
for short rows that share a warp.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda
from normlab.stages.moments import chan_merge, rms_merge

ALL_LANES = 0xFFFFFFFF  # the mask of a shuffle: one bit per lane


@cuda.jit(device=True)
def thread_index():
    """Return this thread's number in a one- or two-dimensional block, x fastest: 32 in a row are a warp."""
    return cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x


@cuda.jit(device=True)
def lane_index():
    """Return this thread's lane in its warp, 0 to 31."""
    return thread_index() & 31  # not %: the compiler cannot know that the index is not negative


@cuda.jit(device=True)
def warp_index():
    """Return the index of this thread's warp in its block."""
    return thread_index() >> 5


@cuda.jit(device=True)
def warp_count():
    """Return the number of whole warps in this block."""
    return (cuda.blockDim.x * cuda.blockDim.y) >> 5  # block sizes are multiples of 32


@cuda.jit(device=True)
def warp_moments(mean, m2, count):
    """Merge the lanes' moments by rotation (apex: the WARP_SHFL loop of cuWelfordMuSigma2). Use lane 0's result."""
    lane = lane_index()
    for level in range(5):
        source = (lane + (1 << level)) & 31  # after this step a lane has merged 2, 4, 8, 16 or 32 lanes
        mean_b = cuda.shfl_sync(ALL_LANES, mean, source)
        m2_b = cuda.shfl_sync(ALL_LANES, m2, source)
        count_b = cuda.shfl_sync(ALL_LANES, count, source)
        # each lane merges its own group first, so the order, and the last digit, differ between lanes
        mean, m2, count = chan_merge(mean, m2, count, mean_b, m2_b, count_b)
    return mean, m2, count


@cuda.jit(device=True)
def warp_moments_butterfly(mean, m2, count):
    """Merge the lanes' moments by butterfly. Every lane gets the same bits."""
    lane = lane_index()
    for level in range(5):
        distance = 16 >> level  # 16, 8, 4, 2, 1
        mean_b = cuda.shfl_xor_sync(ALL_LANES, mean, distance)
        m2_b = cuda.shfl_xor_sync(ALL_LANES, m2, distance)
        count_b = cuda.shfl_xor_sync(ALL_LANES, count, distance)
        # chan_merge is not commutative in its last digit: the lower lane's group is `a` in both lanes of a pair
        if lane & distance:
            mean, m2, count = chan_merge(mean_b, m2_b, count_b, mean, m2, count)
        else:
            mean, m2, count = chan_merge(mean, m2, count, mean_b, m2_b, count_b)
    return mean, m2, count


@cuda.jit(device=True)
def warp_sum(value):
    """Add up the lanes' values by rotation (apex: WARP_SHFL with cuChanRMSOnlineSum). Use lane 0's result."""
    lane = lane_index()
    # one shuffle and one addition per level: no shared memory, no barrier
    for level in range(5):
        value = rms_merge(value, cuda.shfl_sync(ALL_LANES, value, (lane + (1 << level)) & 31))
    return value


@cuda.jit(device=True)
def warp_sum_butterfly(value):
    """Add up the lanes' values by butterfly (apex: cuComputeGradInput's WARP_SHFL_XOR): the same bits in every lane."""
    # a + b is b + a to the last bit, so both lanes of a pair get the same sum
    for level in range(5):
        value = value + cuda.shfl_xor_sync(ALL_LANES, value, 16 >> level)
    return value


@cache
def lanes_sum(lanes: int) -> Any:
    """Return the device function `sum_of_lanes(value)`, which adds up over `lanes` neighbouring lanes.

    Every lane of such a part gets the same bits. lanes: a power of two. All 32 lanes of the warp call it together; each
    part of the warp gets its own sum.
    """
    # a butterfly that begins at half of the part's lanes never leaves the part
    levels, half = lanes.bit_length() - 1, lanes // 2

    @cuda.jit(device=True)
    def sum_of_lanes(value):
        for level in range(levels):
            value = value + cuda.shfl_xor_sync(ALL_LANES, value, half >> level)
        return value

    return sum_of_lanes


class LaneSums(NamedTuple):
    """The sums of several values per lane, over the lanes of a lane group: `sums_of_lanes` makes them.

    reduce_scatter(values, lane): replaces values[0], …, values[left - 1] by the lane's share of the sums.
    all_gather(values, lane): from every lane's share, writes all sums to the values of every lane.
    left: sums in a lane's share. sharing: neighbouring lanes that have the same share.

    Part p of the lanes, p = lane % lanes // sharing, has the sums of the values number p left, …, (p + 1) left - 1.
    """

    reduce_scatter: Any
    all_gather: Any
    left: int
    sharing: int


@cache
def sums_of_lanes(lanes: int, count: int) -> LaneSums:
    """Return the device functions that add up `count` values per lane over `lanes` neighbouring lanes.

    A butterfly for each value (`lanes_sum`) makes every sum in every lane: count log2(lanes) shuffles. Here a lane
    gives half of its values to its partner and adds the partner's other half to those that it keeps, level by level,
    until it has one. Four values over 32 lanes take 2 + 1 shuffles so, 3 for the sum that is left and 4 to tell it all
    lanes: 10 in place of 20. Each sum adds up the same pairs as the butterfly, so it has the same bits.

    lanes, count: powers of two. All 32 lanes of the warp call the functions together.
    """
    parts, half, levels = min(lanes, count), lanes // 2, lanes.bit_length() - 1
    left, sharing, splits = count // parts, lanes // parts, parts.bit_length() - 1

    @cuda.jit(device=True)
    def reduce_scatter(values, lane):
        for level in range(splits):  # bounds are constants: unrolled, and the values stay in registers
            kept, upper = count >> (level + 1), (lane & (half >> level)) != 0
            for k in range(kept):
                mine, given = values[k], values[k + kept]
                if upper:  # of the two lanes, the upper one keeps the upper half
                    mine, given = given, mine
                values[k] = mine + cuda.shfl_xor_sync(ALL_LANES, given, half >> level)
        for level in range(splits, levels):  # a butterfly over the lanes that have the same share
            for k in range(left):
                values[k] = values[k] + cuda.shfl_xor_sync(ALL_LANES, values[k], half >> level)

    @cuda.jit(device=True)
    def all_gather(values, lane):
        first = lane & ~(lanes - 1)
        for k in range(left):
            share = values[k]
            for part in range(parts):
                values[part * left + k] = cuda.shfl_sync(ALL_LANES, share, first + part * sharing)

    return LaneSums(reduce_scatter, all_gather, left, sharing)
