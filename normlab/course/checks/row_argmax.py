"""Exercise: the largest element of each row and its index, with a rule for ties and for NaN."""

import numpy as np

from normlab.course.data import EXCHANGED, nothing, values
from normlab.course.exercise import LOADS, Answer, Case, Cost, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture


def _places(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return three places of each row, in ascending order, for its largest values.

    The first place is a thread's of warp 0 or warp 1, the next one a lower thread's of the same warp or a thread's of
    the other warp, and the last one the first thread's again. Four rows have all four combinations, and the threads'
    first elements as well as later ones.
    """
    which = (rng.integers(4) + np.arange(rows)) % 4
    turns = max(columns // 64 - 1, 1)
    turn = (rng.integers(turns) + np.arange(rows)) % turns
    first = 64 * turn + 32 * (which % 2) + 1 + rng.integers(31, size=rows)
    return np.minimum(first[:, None] + np.where(which[:, None] < 2, [0, 63, 64], [0, 32, 64]), columns - 1)


def _rows(drawn: Drawn) -> np.ndarray:
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    if drawn.kind == "few different":
        return rng.integers(-3, 0, size=(rows, columns)).astype(np.float32)
    if drawn.kind == "at most 0":
        return rng.choice([-1.0, -0.0, 0.0], size=(rows, columns)).astype(np.float32)
    x = values("normal" if drawn.kind in ("NaN", "inf", "-inf") else drawn.kind, rng, rows, columns)
    if drawn.kind == "NaN":  # an inf may stand before a NaN
        x[rng.random(size=x.shape) < 0.2] = np.inf
    if drawn.kind in ("NaN", "inf"):
        x[np.arange(rows)[:, None], _places(rng, rows, columns)] = np.nan if drawn.kind == "NaN" else np.inf
    if drawn.kind == "-inf":
        x[rng.random(size=x.shape) < 0.9] = -np.inf
        x[rng.integers(rows)] = -np.inf
    return x


def _make(drawn: Drawn) -> Case:
    x = _rows(drawn)
    indices = x.argmax(axis=1)  # NumPy's rules are the exercise's: the lowest index of ties, and NaN is the largest
    return Case(
        launches=[Launch("argmax", len(x), 64, ("x", "maxima", "indices"))],
        arrays={"x": x, "maxima": nothing(len(x)), "indices": np.empty(len(x), np.int32)},
        want={
            "maxima": Answer(x[np.arange(len(x)), indices].astype(np.float64), 0.0),
            "indices": Answer(indices.astype(np.float64), 0.0),
        },
    )


EXERCISE = Exercise(
    name="row_argmax",
    title="The largest element, and where it stands",
    make=_make,
    sizes={"rows": Size(1, 2), "columns": Size(1, 200, (2, 31, 33, 64, 65, 129), beyond=800)},
    also=(  # all that `_places` tells of, and a row with numbers beside one without
        *(({"rows": 4, "columns": 200}, kind) for kind in ("NaN", "inf")),
        ({"rows": 2, "columns": 70}, "-inf"),
    ),
    kinds=("counting", "normal", "few different", "at most 0", "equal", "NaN", "inf", "-inf"),
    example={"rows": 1, "columns": 128},
    hints=(
        "value != value is True for a NaN only. If one of the two is a NaN, it wins; if both are, or if both values "
        "are equal, the lower index wins; otherwise the larger value.",
        "Begin with float32(-math.inf) and int32(columns): on a tie with -inf this index loses. Two shuffles a step, "
        "one for the value and one for the index.",
        "Lane 0 of each warp leaves its candidate in values and places; after one cuda.syncthreads() thread 0 takes "
        "the better of the two and stores it.",
    ),
    costs=(*EXCHANGED, Cost(LOADS, "one pass over the row is enough")),
    tutorial=5,
    picture=Picture("tree", "candidates meet in a butterfly within each warp, and once between the warps"),
)
