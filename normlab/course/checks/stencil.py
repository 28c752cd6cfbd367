"""Exercise: sums of three neighbours through shared memory, with a halo and one barrier."""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import (
    BARRIERS,
    LOADED_SECTORS,
    LOADS,
    NEIGHBOURS_LOADED,
    Answer,
    Case,
    Cost,
    Drawn,
    Exercise,
    Launch,
    Size,
)
from normlab.course.pictures import Picture, phases
from normlab.oracle import unit_roundoff


def _make(drawn: Drawn) -> Case:
    n = drawn["n"]
    x = values(drawn.kind, drawn.rng, n)
    padded = np.pad(x.astype(np.float64), 1)
    parts = np.stack([padded[:-2], padded[1:-1], padded[2:]])
    bound = 2.001 * unit_roundoff("float32") * abs(parts).sum(axis=0)  # two additions round, in whichever order
    return Case(
        launches=[Launch("sum_of_three", -(-n // 32), 32, ("x", "y"))],
        arrays={"x": x, "y": nothing(n)},
        want={"y": Answer(parts.sum(axis=0), bound)},
    )


EXERCISE = Exercise(
    name="stencil",
    title="Neighbours, through shared memory",
    make=_make,
    sizes={"n": Size(1, 100, (1, 2, 31, 32, 33, 64), beyond=400, multiples_of=32)},
    example={"n": 70},
    hints=(
        "Each thread writes tile[1 + t]: x[i] if i < n, else float32(0). Two elements are left, and one thread is "
        "enough for them.",
        "Thread 0 knows both: tile[0] is x[i - 1] if i > 0, tile[33] is x[i + 32] if there is one; else float32(0).",
        "Then cuda.syncthreads(), outside of any if, and last, guarded: y[i] = tile[t] + tile[t + 1] + tile[t + 2].",
    ),
    costs=(
        Cost(BARRIERS, "one for each block is enough"),
        # who fills the tile from its first element on loads 32 neighbours that begin before a sector
        Cost(LOADED_SECTORS, NEIGHBOURS_LOADED, spare=LOADS),
    ),
    tutorial=5,
    picture=Picture(phases("tile"), "all writes stand above the barrier, all reads below it"),
)
