"""Exercise: how many blocks a launch needs. The solution's own function says it before each launch."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import GRID, Answer, Case, Chosen, Cost, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, writers
from normlab.oracle import unit_roundoff


def _make(drawn: Drawn) -> Case:
    x = values(drawn.kind, drawn.rng, drawn["n"])
    squares = x.astype(np.float64) ** 2
    return Case(
        launches=[Launch("square", Chosen("blocks", (drawn["n"],)), 64, ("x", "y"))],
        arrays={"x": x, "y": nothing(drawn["n"])},
        want={"y": Answer(squares, 1.001 * unit_roundoff("float32") * squares)},  # it rounds once
    )


EXERCISE = Exercise(
    name="launch_size",
    title="A launch size of your own",
    make=_make,
    sizes={"n": Size(1, 400, (1, 63, 64, 65, 128), beyond=1000, multiples_of=64)},
    example={"n": 192},
    hints=(
        "How many blocks do 64 elements need, and how many 65?",
        "n // THREADS rounds down. What has to be added to n first, so that 65 gives 2, and 64 still 1?",
        "return (n + THREADS - 1) // THREADS",
    ),
    costs=(Cost(GRID, "a block more has no element"),),
    picture=Picture(writers("y"), "a colour is a block; few threads are left over, and no whole block"),
)
