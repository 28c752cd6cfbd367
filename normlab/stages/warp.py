"""32 lanes to one value, with no memory: shuffles. Each stage must be reached by all 32 lanes of the warp together.

Two patterns. The butterfly pairs lane i with lane i xor 16, 8, 4, 2, 1. The rotation (apex's forward) pairs lane i with
lane (i + 1, 2, 4, 8, 16) mod 32. Both need five steps, and after them every lane has merged all 32; but rounding
depends on the order, so with the rotation each lane may hold another last digit: lane 0's is the one to use. A
butterfly of a commutative operation gives every lane the same bits. `lanes_sum` stops a butterfly early: a part of the
warp has a row to itself.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda
from normlab.stages.moments import chan_merge, rms_merge

ALL_LANES = 0xFFFFFFFF


@cuda.jit(device=True)
def thread_index():
    """This thread's number in a one- or two-dimensional block, x fastest: what warps are cut from."""
    return cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x


@cuda.jit(device=True)
def lane_index():
    """This thread's lane in its warp, 0 to 31."""
    return thread_index() & 31


@cuda.jit(device=True)
def warp_index():
    """The number of this thread's warp in its block."""
    return thread_index() >> 5


@cuda.jit(device=True)
def warp_count():
    """The number of whole warps in this block."""
    return (cuda.blockDim.x * cuda.blockDim.y) >> 5


@cuda.jit(device=True)
def warp_moments(mean, m2, count):
    """Moments of the whole warp by rotation (apex: the WARP_SHFL loop of cuWelfordMuSigma2). Use lane 0's result."""
    lane = lane_index()
    for level in range(5):
        source = (lane + (1 << level)) & 31
        mean_b = cuda.shfl_sync(ALL_LANES, mean, source)
        m2_b = cuda.shfl_sync(ALL_LANES, m2, source)
        count_b = cuda.shfl_sync(ALL_LANES, count, source)
        mean, m2, count = chan_merge(mean, m2, count, mean_b, m2_b, count_b)
    return mean, m2, count


@cuda.jit(device=True)
def warp_moments_butterfly(mean, m2, count):
    """Moments of the warp by butterfly; the lower lane's group is always `a`, so every lane gets the same bits."""
    lane = lane_index()
    for level in range(5):
        distance = 16 >> level
        mean_b = cuda.shfl_xor_sync(ALL_LANES, mean, distance)
        m2_b = cuda.shfl_xor_sync(ALL_LANES, m2, distance)
        count_b = cuda.shfl_xor_sync(ALL_LANES, count, distance)
        if lane & distance:
            mean, m2, count = chan_merge(mean_b, m2_b, count_b, mean, m2, count)
        else:
            mean, m2, count = chan_merge(mean, m2, count, mean_b, m2_b, count_b)
    return mean, m2, count


@cuda.jit(device=True)
def warp_sum(value):
    """Sum over the warp by rotation (apex: WARP_SHFL with cuChanRMSOnlineSum). Use lane 0's result."""
    lane = lane_index()
    for level in range(5):
        value = rms_merge(value, cuda.shfl_sync(ALL_LANES, value, (lane + (1 << level)) & 31))
    return value


@cuda.jit(device=True)
def warp_sum_butterfly(value):
    """Sum over the warp by butterfly (apex: cuComputeGradInput's WARP_SHFL_XOR); the same bits in every lane."""
    for level in range(5):
        value = value + cuda.shfl_xor_sync(ALL_LANES, value, 16 >> level)
    return value


@cache
def lanes_sum(lanes: int) -> Any:
    """The device function `sum_of_lanes(value)`: over so many neighbouring lanes, the same bits in each of them.

    lanes: a power of two. All 32 lanes of the warp come, each such part of them with sums of its own.
    """
    levels, half = lanes.bit_length() - 1, lanes // 2

    @cuda.jit(device=True)
    def sum_of_lanes(value):
        for level in range(levels):
            value = value + cuda.shfl_xor_sync(ALL_LANES, value, half >> level)
        return value

    return sum_of_lanes
