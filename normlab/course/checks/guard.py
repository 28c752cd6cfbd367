"""Exercise: threads without an element do nothing."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, writers


def _make(drawn: Drawn) -> Case:
    x = values(drawn.kind, drawn.rng, drawn["n"])
    return Case(
        launches=[Launch("negate", 1, 64, ("x", "y"))],
        arrays={"x": x, "y": nothing(drawn["n"])},
        want={"y": Answer(-x.astype(np.float64), 0.0)},
    )


EXERCISE = Exercise(
    name="guard",
    title="More threads than elements",
    make=_make,
    sizes={"n": Size(1, 64, (1, 2, 33, 64))},
    kinds=("counting", "normal"),
    example={"n": 50},
    hints=(
        "Begin as in exercise 1. Which values of i have an element, if x has 50 of them?",
        "i < x.shape[0] is true where there is an element. Put what reads and writes under an if.",
        "if i < x.shape[0]: y[i] = -x[i]",
    ),
    picture=Picture(
        writers("y"), "each element is written by one thread, and the threads that are left over wrote none"
    ),
)
