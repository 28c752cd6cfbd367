"""Exercise: a thread for each element of a matrix."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, writers
from normlab.oracle import unit_roundoff


def _make(drawn: Drawn) -> Case:
    rows, columns = drawn["rows"], drawn["columns"]
    a, b = values(drawn.kind, drawn.rng, rows), values("normal", drawn.rng, columns)
    product = np.outer(a.astype(np.float64), b)
    return Case(
        launches=[Launch("outer", 1, (8, 8), ("a", "b", "y"))],
        arrays={"a": a, "b": b, "y": nothing(rows, columns)},
        want={"y": Answer(product, 1.001 * unit_roundoff("float32") * abs(product))},  # it rounds once
    )


EXERCISE = Exercise(
    name="map_2d",
    title="Threads in two dimensions",
    make=_make,
    sizes={"rows": Size(1, 8, (1, 8)), "columns": Size(1, 8, (1, 8))},
    kinds=("counting", "normal"),
    example={"rows": 6, "columns": 8},
    hints=(
        "Two numbers for each thread: column = cuda.threadIdx.x and row = cuda.threadIdx.y.",
        "y.shape[0] is the number of rows, y.shape[1] that of columns. Both numbers have to be small enough.",
        "if row < y.shape[0] and column < y.shape[1]: y[row, column] = a[row] * b[column]",
    ),
    picture=Picture(writers("y", label="xy"), "x counts along a row, y from row to row"),
)
