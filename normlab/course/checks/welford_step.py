"""Exercise: Welford's step. Solved in `normlab.stages.moments.welford_step`."""

from functools import partial

from normlab.course.data import growing_case, growing_lines, moments_case
from normlab.course.exercise import Case, Drawn, Exercise, Size
from normlab.course.pictures import Picture, results


def _make(drawn: Drawn) -> Case:
    return moments_case(drawn, "row_statistics", -(-drawn["rows"] // 32), 32)


EXERCISE = Exercise(
    name="welford_step",
    title="One more value: Welford's step",
    make=_make,
    sizes={"rows": Size(1, 40, (33,), beyond=200), "columns": Size(1, 60, (1, 2, 200), beyond=600)},
    example={"rows": 32, "columns": 4},
    hints=(
        "Count first: the new count is what everything is divided by.",
        "delta = value - mean has to be taken before the mean moves; the other factor of m2's growth after.",
        "mean = mean + delta / count, then m2 = m2 + delta * (value - mean). Return all three, in this order.",
    ),
    tutorial=2,
    picture=Picture(
        results("Mean and variance after each value", "values taken in", growing_lines),
        "after each value your mean and your variance lie on the lines: the step is right at every count",
        partial(growing_case, "row_statistics", 32),
    ),
)
