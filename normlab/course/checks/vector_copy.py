"""Exercise: a copy of 16 bytes per instruction. The whole story is `normlab.stages.vector`."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import BUSIEST_LOADS, BUSIEST_STORES, Answer, Case, Cost, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, readers


def _make(drawn: Drawn) -> Case:
    n = drawn["n"]
    x = values(drawn.kind, drawn.rng, n)
    return Case(
        launches=[Launch("copy", -(-n // 256), 64, ("x", "y"))],
        arrays={"x": x, "y": nothing(n)},
        want={"y": Answer(x.astype(np.float64), 0.0)},
    )


EXERCISE = Exercise(
    name="vector_copy",
    title="Four at a time",
    make=_make,
    sizes={"n": Size(1, 300, (1, 3, 4, 5, 255, 256, 257), beyond=4000)},
    kinds=("counting", "normal"),
    example={"n": 1024},
    hints=(
        "When are all four elements there? first + 4 <= n.",
        "Then store_vector(y, first, load_vector(x, first, 4)); else element by element.",
        "for i in range(first, n) is empty for the threads beyond the end, so it needs no guard.",
    ),
    # Thread 0 may copy the last elements, at most 3, beside its own 4.
    costs=tuple(
        Cost(metric, "let all threads share the work", times=7 / 4) for metric in (BUSIEST_LOADS, BUSIEST_STORES)
    ),
    tutorial=12,
    picture=Picture(
        readers("x"),
        "each thread has four neighbours; the last ones, if fewer are left, are read one by one",
        lambda: _make(Drawn({"n": 70}, "counting", 0)),
    ),
)
