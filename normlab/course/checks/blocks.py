"""Exercise: the number of a thread among all threads of a launch."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, writers
from normlab.oracle import unit_roundoff


def _make(drawn: Drawn) -> Case:
    n, threads = drawn["n"], drawn["threads"]
    x = values(drawn.kind, drawn.rng, n)
    squares = x.astype(np.float64) ** 2
    return Case(
        launches=[Launch("square", -(-n // threads), threads, ("x", "y"))],
        arrays={"x": x, "y": nothing(n)},
        want={"y": Answer(squares, 1.001 * unit_roundoff("float32") * squares)},  # it rounds once
    )


EXERCISE = Exercise(
    name="blocks",
    title="Many blocks, and a number for each thread of all",
    make=_make,
    sizes={"n": Size(1, 200, (1, 33, 65), beyond=1000), "threads": Size(1, 64, (1, 32))},
    example={"n": 70, "threads": 16},
    hints=(
        "How many threads stand before block 2, if each block has 32? They have taken as many elements.",
        "blockIdx.x blocks stand before this one, with blockDim.x threads each: multiply, and add threadIdx.x.",
        "i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, and a guard as in exercise 2.",
    ),
    picture=Picture(writers("y"), "a colour is a block: in each of them the threads count from 0 again"),
)
