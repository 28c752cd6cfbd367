"""Exercise: a thread for each element."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, writers


def _make(drawn: Drawn) -> Case:
    x = values(drawn.kind, drawn.rng, drawn["n"])
    return Case(
        launches=[Launch("double", 1, drawn["n"], ("x", "y"))],
        arrays={"x": x, "y": nothing(drawn["n"])},
        want={"y": Answer(2 * x.astype(np.float64), 0.0)},
    )


EXERCISE = Exercise(
    name="map",
    title="One thread, one element",
    make=_make,
    sizes={"n": Size(1, 64, (1, 2, 33))},
    kinds=("counting", "normal"),
    example={"n": 32},
    hints=(
        "What is different in each thread? Only cuda.threadIdx.x. Give it a short name: i = cuda.threadIdx.x.",
        "The thread with the number i reads x[i] and writes y[i]. No loop is needed.",
        "y[i] = float32(2) * x[i]",
    ),
    picture=Picture(writers("y"), "thread 0 wrote element 0, thread 1 element 1, and so on: one element each"),
)
