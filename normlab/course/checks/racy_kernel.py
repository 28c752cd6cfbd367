"""Exercise: a kernel without barriers, to be mended."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import BARRIERS, Answer, Case, Cost, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, phases
from normlab.oracle import unit_roundoff


def _make(drawn: Drawn) -> Case:
    cells, times = drawn["cells"], drawn["times"]
    x = values(drawn.kind, drawn.rng, cells)
    line = x.astype(np.float64)
    for _ in range(times):
        line[1:-1] = line[:-2] / 4 + line[1:-1] / 2 + line[2:] / 4
    # Products with 1/4 and 1/2 are exact, two additions round, and an average magnifies no earlier error.
    bound = 2.001 * times * unit_roundoff("float32") * abs(x).max()
    return Case(
        launches=[Launch("smooth", 1, 64, ("x", times, "y"))],
        arrays={"x": x, "y": nothing(cells)},
        want={"y": Answer(line, np.full(cells, bound))},
    )


EXERCISE = Exercise(
    name="racy_kernel",
    title="A kernel that is wrong on Tuesdays",
    make=_make,
    sizes={"cells": Size(1, 64, (1, 2, 3, 33, 64)), "times": Size(1, 3, (1, 2), beyond=8)},
    lines=3,
    example={"cells": 64, "times": 3},
    hints=(
        "Each cell is read by three threads and written by one. List what happens to cell 5 in two turns of the loop.",
        "The first write to line must come before a neighbour's first read; a read before the write that follows it; "
        "that write before the next turn's reads.",
        "Three cuda.syncthreads(), one at each of the three places, none of them inside an if.",
    ),
    costs=(Cost(BARRIERS, "1, and 2 for each time, are enough"),),
    tutorial=5,
    picture=Picture(
        phases("line"),
        "no cell is read and written between the same two barriers, except by its own thread",
        lambda: _make(Drawn({"cells": 16, "times": 2}, "normal", 0)),
    ),
)
