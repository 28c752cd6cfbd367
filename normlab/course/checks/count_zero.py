"""Exercise: merging two empty groups. Solved in `normlab.stages.moments.chan_merge`.

The results of all lanes are checked: in lane 0 the empty group is never the first of the two.
"""

from functools import partial

from normlab.course.data import growing_case, growing_lines, moments_case
from normlab.course.exercise import Case, Drawn, Exercise, Size
from normlab.course.pictures import Picture, results


def _make(drawn: Drawn) -> Case:
    return moments_case(drawn, "warp_moments", drawn["rows"], 32, lanes=32)


EXERCISE = Exercise(
    name="count_zero",
    title="A group with nothing in it",
    make=_make,
    sizes={"rows": Size(1, 3), "columns": Size(1, 70, (1, 2, 31, 32, 33), beyond=300)},
    kinds=("counting", "equal", "normal", "offset", "zero"),
    example={"rows": 1, "columns": 7},
    hints=(
        "Which lanes have an empty group in a row of 2 columns, and which two of them meet first?",
        "Only the case count == 0 is wrong. What are mean, m2 and count of no values?",
        "if count == 0: return three zeros; count itself is one, and a float32 already.",
    ),
    tutorial=3,
    picture=Picture(
        results("Mean and variance of a row by a warp of 32 lanes", "values in the row", growing_lines),
        "with fewer than 32 values some lanes have an empty group, and two of these meet: is anything missing?",
        partial(growing_case, "warp_moments", 40, lanes=32),
    ),
)
