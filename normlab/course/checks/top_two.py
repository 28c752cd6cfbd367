"""Exercise: the two largest elements of each row."""

import numpy as np

from normlab.course.data import EXCHANGED, nothing, values
from normlab.course.exercise import LOADS, Answer, Case, Cost, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture


def _rows(drawn: Drawn) -> np.ndarray:
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    if drawn.kind == "few different":
        return rng.integers(-3, 0, size=(rows, columns)).astype(np.float32)
    if drawn.kind == "falling":  # the two largest are neighbours, at the row's beginning
        return -values("counting", rng, rows, columns)
    x = values("normal" if drawn.kind == "-inf" else drawn.kind, rng, rows, columns)
    if drawn.kind in ("normal", "offset"):  # the two largest lie 64 columns apart, if they can: one thread meets both
        place = int(rng.integers(max(columns - 64, 1)))
        x[:, [place, min(place + 64, columns - 1)]] += 10
        if drawn.kind == "offset":  # and they are equal
            x[:, min(place + 64, columns - 1)] = x[:, place]
    if drawn.kind == "-inf":
        x[rng.random(size=x.shape) < 0.9] = -np.inf
        x[rng.integers(rows)] = -np.inf
    return x


def _make(drawn: Drawn) -> Case:
    x = _rows(drawn)
    nothing_more = np.full((len(x), 1), -np.inf)  # the second of a row of one element
    largest = np.sort(np.concatenate([x, nothing_more], axis=1), axis=1)[:, :-3:-1]
    return Case(
        launches=[Launch("top_two", len(x), 64, ("x", "largest"))],
        arrays={"x": x, "largest": nothing(len(x), 2)},
        want={"largest": Answer(largest, 0.0)},
    )


EXERCISE = Exercise(
    name="top_two",
    title="The two largest",
    make=_make,
    sizes={"rows": Size(1, 2), "columns": Size(1, 200, (2, 3, 33, 64, 65, 129), beyond=800)},
    also=(({"rows": 2, "columns": 70}, "-inf"),),  # a row with numbers beside one without
    kinds=("counting", "normal", "offset", "few different", "falling", "equal", "-inf"),
    example={"rows": 1, "columns": 128},
    hints=(
        "The larger of the two firsts is the first. The second is the largest of what is left: the smaller of the two "
        "firsts, and both seconds.",
        "Each thread merges its elements one by one, as (value, -inf). Then five steps by cuda.shfl_xor_sync, with two "
        "shuffles each: in a butterfly the groups of two partners never overlap.",
        "Lane 0 of each warp leaves its two in buffer; after one cuda.syncthreads() thread 0 merges the two pairs.",
    ),
    costs=(*EXCHANGED, Cost(LOADS, "one pass over the row is enough")),
    tutorial=5,
    picture=Picture("tree", "pairs meet in a butterfly within each warp, and once between the warps"),
)
