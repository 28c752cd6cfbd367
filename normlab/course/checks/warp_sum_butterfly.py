"""Exercise: a warp's sum by butterfly. Solved in `normlab.stages.warp.warp_sum_butterfly`."""

import numpy as np

from normlab.course.data import nothing, sums, values
from normlab.course.exercise import (
    SHARED_LOADS,
    SHARED_STORES,
    SHUFFLES,
    Answer,
    Case,
    Cost,
    Drawn,
    Exercise,
    Launch,
    Size,
)
from normlab.course.pictures import Picture


def _make(drawn: Drawn) -> Case:
    rows = drawn["rows"]
    x = values(drawn.kind, drawn.rng, rows, 32)
    value, bound = (np.repeat(np.asarray(part)[:, None], 32, axis=1) for part in sums(x))
    return Case(
        launches=[Launch("sum_rows", rows, 32, ("x", "sums", "differences"))],
        arrays={"x": x, "sums": nothing(rows, 32), "differences": nothing(rows, 32)},
        want={"sums": Answer(value, bound), "differences": Answer(np.zeros((rows, 32)), 0.0)},
    )


EXERCISE = Exercise(
    name="warp_sum_butterfly",
    title="32 lanes, one sum, the same bits: the butterfly",
    make=_make,
    sizes={"rows": Size(1, 6, (1, 2))},
    kinds=("equal", "counting", "normal", "offset"),
    example={"rows": 1},
    hints=(
        "The distances are 16, 8, 4, 2, 1: 16 >> level for level in range(5).",
        "cuda.shfl_xor_sync finds the partner itself: no lane number is needed.",
        "value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level), five times; then return value.",
    ),
    costs=(
        Cost(SHUFFLES, "five for each row, and the kernel's one", exactly=True),
        *(
            Cost(metric, "lanes exchange values by shuffles, without memory")
            for metric in (SHARED_LOADS, SHARED_STORES)
        ),
    ),
    tutorial=4,
    picture=Picture("tree", "five levels; at each of them two lanes exchange what they have, so all end with one sum"),
)
