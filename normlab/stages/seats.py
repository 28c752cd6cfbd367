"""A few lanes a sum: 2 to 32 neighbouring lanes share something short, several such teams share a warp.

`warp` reduces over all 32 lanes; what is shorter than that would leave most of them idle. Butterflies, so every lane of
a team gets the same bits. All lanes of the warp must come.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda
from normlab.stages.moments import chan_merge
from normlab.stages.warp import ALL_LANES

MOST = 5  # levels: a whole warp


def levels_for(items: int) -> int:
    """Levels of the smallest team that has a lane for each item, or of a whole warp."""
    return min(MOST, (items - 1).bit_length())


@cache
def seats_sum(levels: int) -> Any:
    """The device function `team_sum(value)` over 2**levels lanes."""

    @cuda.jit(device=True)
    def team_sum(value):
        for level in range(levels):
            value += cuda.shfl_xor_sync(ALL_LANES, value, 1 << level)
        return value

    return team_sum


@cache
def seats_moments(levels: int) -> Any:
    """The device function `team_moments(mean, m2, count)` over 2**levels lanes; the lower lanes' group is always `a`.

    Lanes that are dealt items in turn, the lower ones first, so have no fewer on the left of any merge.
    """
    most = 1 << levels >> 1

    @cuda.jit(device=True)
    def team_moments(mean, m2, count):
        for level in range(levels):
            distance = most >> level
            mean_b = cuda.shfl_xor_sync(ALL_LANES, mean, distance)
            m2_b = cuda.shfl_xor_sync(ALL_LANES, m2, distance)
            count_b = cuda.shfl_xor_sync(ALL_LANES, count, distance)
            if cuda.threadIdx.x & distance:
                mean, m2, count = chan_merge(mean_b, m2_b, count_b, mean, m2, count)
            else:
                mean, m2, count = chan_merge(mean, m2, count, mean_b, m2_b, count_b)
        return mean, m2, count

    return team_moments
