"""Exercise: a transposition through a padded tile. Padding as in `normlab.stages.strided`."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import (
    LOAD_CONFLICTS,
    STORE_CONFLICTS,
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
    rows, columns = drawn["rows"], drawn["columns"]
    x = values(drawn.kind, drawn.rng, rows, columns)
    return Case(
        launches=[Launch("transpose", (-(-columns // 32), -(-rows // 32)), (32, 8), ("x", "y"))],
        arrays={"x": x, "y": nothing(columns, rows)},
        want={"y": Answer(x.T.astype(np.float64), 0.0)},
    )


EXERCISE = Exercise(
    name="padded_tile",
    title="A tile, turned round, without a traffic jam",
    make=_make,
    sizes={"rows": Size(1, 40, (1, 33, 65), beyond=100), "columns": Size(1, 40, (1, 33, 65), beyond=200)},
    kinds=("counting", "normal"),
    example={"rows": 32, "columns": 32},
    hints=(
        "Thread (column, threadIdx.y) takes rows threadIdx.y, threadIdx.y + 8, … of the tile: a loop of 4 turns.",
        "Behind a cuda.syncthreads() the same walk writes: y[first_column + row, first_row + column] is which element "
        "of the tile? Guard loads and stores, not the barrier.",
        "tile = cuda.shared.array((32, 33), float32): an odd number of words a row puts a column into 32 banks.",
    ),
    costs=(
        Cost(STORE_CONFLICTS, "lanes that store into different words of one bank wait for each other"),
        Cost(LOAD_CONFLICTS, "lanes that load different words of one bank wait for each other"),
    ),
    tutorial=8,
    picture=Picture("banks", "32 lanes in 32 banks: no bank is wanted twice"),
)
