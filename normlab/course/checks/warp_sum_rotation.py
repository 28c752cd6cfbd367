"""Exercise: add up the values of a warp's 32 lanes by shuffles that rotate them. Only lane 0's sum is checked.

Each of five steps doubles the number of lanes whose values a lane has summed. Solved in `normlab.stages.warp.warp_sum`.
"""

from normlab.course.data import sums_case
from normlab.course.exercise import SHARED_LOADS, SHARED_STORES, SHUFFLES, Case, Cost, Drawn, Exercise, Size
from normlab.course.pictures import Picture


def _make(drawn: Drawn) -> Case:
    return sums_case(drawn, drawn["rows"], 32)


EXERCISE = Exercise(
    name="warp_sum_rotation",
    title="32 lanes, one sum: the rotation",
    make=_make,
    sizes={"rows": Size(1, 6, (1,))},
    kinds=("equal", "counting", "normal", "offset"),
    example={"rows": 1},
    hints=(
        "The distances are 1, 2, 4, 8, 16: 1 << level for level in range(5).",
        "Lane 31 reads from lane 0: lane + distance has to come round. & 31 does that, as 32 is a power of two.",
        "In each turn value += cuda.shfl_sync(0xFFFFFFFF, value, (lane + (1 << level)) & 31); return value at the end.",
    ),
    costs=(
        Cost(SHUFFLES, "each step doubles the values that a lane has summed, and 2⁵ is 32", exactly=True),
        *(
            Cost(metric, "lanes exchange values by shuffles, without memory")
            for metric in (SHARED_LOADS, SHARED_STORES)
        ),
    ),
    tutorial=4,
    picture=Picture("tree", "five levels; at each of them every lane holds the sum of twice as many lanes"),
)
