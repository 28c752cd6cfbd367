"""Exercise: a segmented sum by a segmented scan in each warp, and one atomic addition per run.

Source of the scan: Sengupta, Harris, Zhang and Owens 2007, "Scan primitives for GPU computing".
"""

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import (
    BARRIERS,
    EXCHANGES,
    GLOBAL_ATOMICS,
    SHUFFLES,
    Answer,
    Case,
    Cost,
    Drawn,
    Exercise,
    Launch,
    Size,
)
from normlab.course.pictures import Picture, writers
from normlab.oracle import unit_roundoff


def sums_of_segments(x: np.ndarray, ids: np.ndarray, segments: int) -> Answer:
    """Return the sum of each segment in float64, with a bound for every order of additions.

    m values take m additions or fewer (the first one to the 0 in sums, which rounds nothing): γ of m roundings, times
    the sum of the absolute values (Higham, (4.4)). The float64 sums are off by far less than the ones rounded up.
    """
    wide = x.astype(np.float64)
    roundings = np.bincount(ids, minlength=segments) * unit_roundoff("float32")
    sizes = np.bincount(ids, abs(wide), minlength=segments)
    return Answer(np.bincount(ids, wide, minlength=segments), roundings / (1 - roundings) * sizes)


def _ids(drawn: Drawn) -> np.ndarray:
    """Return the elements' ids in ascending order, of all segments or, for two of the kinds, of three at most."""
    rng, n, segments = drawn.rng, drawn["n"], drawn["segments"]
    used = segments if drawn.kind in ("counting", "normal") else min(segments, 3)  # the fewer, the longer
    return np.sort(rng.choice(rng.choice(segments, used, replace=False), n)).astype(np.int32)


def _make(drawn: Drawn) -> Case:
    n, segments, ids = drawn["n"], drawn["segments"], _ids(drawn)
    x = values(drawn.kind, drawn.rng, n)
    return Case(
        launches=[
            Launch("clear", -(-segments // 32), 32, ("sums",)),
            Launch("segmented_sum", -(-n // 64), 64, ("x", "ids", "sums")),
        ],
        arrays={"x": x, "ids": ids, "sums": nothing(segments)},
        want={"sums": sums_of_segments(x, ids, segments)},
    )


EXERCISE = Exercise(
    name="segmented_sum",
    title="The sums of segments",
    make=_make,
    sizes={
        "n": Size(1, 300, (2, 31, 32, 33, 64, 65), beyond=1000),
        "segments": Size(1, 60, (1, 60), beyond=200),
    },
    kinds=("counting", "normal", "offset", "equal"),
    example={"n": 128, "segments": 12},
    hints=(
        "Load value and segment if i < x.shape[0]; other threads keep 0 and -1, and take part in all shuffles.",
        "A step: value_before and segment_before by cuda.shfl_up_sync, outside of every if; then value += value_before "
        "if lane >= distance and segment_before == segment.",
        "The id of the lane after this one, by cuda.shfl_down_sync, tells whether a run ends here; lane 31 always ends "
        "one. Then cuda.atomic.add(sums, segment, value), unless the segment is -1.",
    ),
    costs=(
        Cost(GLOBAL_ATOMICS, "one for each run of equal ids in a warp is enough"),
        Cost(EXCHANGES, "5 steps of two shuffles are enough, and one shuffle to find the ends of runs", times=2.5),
        Cost(BARRIERS, "in shared memory a step takes one barrier", spare=SHUFFLES),
    ),
    tutorial=8,
    picture=Picture(
        writers("sums", launch=1),
        "the last lane of each run adds to its segment; a red frame is a segment of several runs, which takes atomics",
    ),
)
