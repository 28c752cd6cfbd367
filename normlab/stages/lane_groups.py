"""Reduce over groups of 1 to 32 neighbouring lanes, so that one warp can work on several short sets at once.

`warp` reduces over all 32 lanes. A set of eight items would leave 24 of them idle; here four sets share a warp, with
eight lanes each. The stages are butterflies, which give every lane of a group the same bits. All 32 lanes of the warp
call them together.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda
from normlab.stages.moments import chan_merge
from normlab.stages.warp import ALL_LANES

MOST = 5  # levels of a butterfly over 2^5 lanes, a whole warp


def levels_for(items: int) -> int:
    """Return log2 of the smallest group that has one lane per item, at most 5: a whole warp."""
    return min(MOST, (items - 1).bit_length())


@cache
def lane_group_sum(levels: int) -> Any:
    """Return the device function `group_sum(value)`, which adds up over 2**levels neighbouring lanes."""

    @cuda.jit(device=True)
    def group_sum(value):
        # The distances 1, 2, 4, … never leave a group, so one shuffle of the warp serves all its groups.
        for level in range(levels):
            value += cuda.shfl_xor_sync(ALL_LANES, value, 1 << level)
        return value

    return group_sum


@cache
def lane_group_moments(levels: int) -> Any:
    """Return the device function `group_moments(mean, m2, count)`, which merges over 2**levels neighbouring lanes.

    The lower lane's moments are always `a` in `chan_merge`, so both lanes of a pair get the same bits. Items go to
    lanes in turn, beginning with the lowest lane; so `a` never has fewer items than `b`.
    """
    most = 1 << levels >> 1  # half of the lanes; 0 for a group of one lane, which merges nothing

    @cuda.jit(device=True)
    def group_moments(mean, m2, count):
        for level in range(levels):
            distance = most >> level  # the largest distance first: `a` is always from the lower half
            mean_b = cuda.shfl_xor_sync(ALL_LANES, mean, distance)
            m2_b = cuda.shfl_xor_sync(ALL_LANES, m2, distance)
            count_b = cuda.shfl_xor_sync(ALL_LANES, count, distance)
            # both lanes of a pair merge in the same order and so get the same bits
            if cuda.threadIdx.x & distance:
                mean, m2, count = chan_merge(mean_b, m2_b, count_b, mean, m2, count)
            else:
                mean, m2, count = chan_merge(mean, m2, count, mean_b, m2_b, count_b)
        return mean, m2, count

    return group_moments
