"""Exercise: the largest element of each row and its index, with a rule for ties and for NaN."""

import numpy as np

from normlab.course.data import EXCHANGED, nothing, values
from normlab.course.exercise import LOADS, Answer, Case, Cost, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture


def _rows(drawn: Drawn) -> np.ndarray:
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    if drawn.kind == "few different":
        return rng.integers(-3, 0, size=(rows, columns)).astype(np.float32)
    if drawn.kind == "at most 0":
        return rng.choice([-1.0, -0.0, 0.0], size=(rows, columns)).astype(np.float32)
    x = values("normal" if drawn.kind in ("NaN", "inf", "-inf") else drawn.kind, rng, rows, columns)
    if drawn.kind in ("NaN", "inf"):  # an inf may stand before a NaN, and two may be a tie
        x[rng.random(size=x.shape) < 0.2] = np.inf
    if drawn.kind == "NaN":  # the first one; then one of a lower thread, and one of the first one's thread
        first = rng.integers(max(columns - 64, 1), size=(rows, 1)) | 1
        x[np.arange(rows)[:, None], np.minimum(first + np.array([0, 63, 64]), columns - 1)] = np.nan
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
