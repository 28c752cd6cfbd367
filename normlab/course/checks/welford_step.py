"""Exercise: Welford's step. Solved in `normlab.stages.moments.welford_step`."""

from normlab.course.data import moments_case
from normlab.course.exercise import Case, Drawn, Exercise, Size


def _make(drawn: Drawn) -> Case:
    return moments_case(drawn, "row_statistics", -(-drawn["rows"] // 32), 32)


EXERCISE = Exercise(
    name="welford_step",
    title="One more value: Welford's step",
    make=_make,
    sizes={"rows": Size(1, 40, (33,)), "columns": Size(1, 60, (1, 2, 200))},
    example={"rows": 32, "columns": 4},
    hints=(
        "Count first: the new count is what everything is divided by.",
        "delta = value - mean has to be taken before the mean moves; the other factor of m2's growth after.",
        "mean = mean + delta / count, then m2 = m2 + delta * (value - mean). Return all three, in this order.",
    ),
    picture="sectors",
)
