"""Exercise: a histogram with a private copy of the bins for each block."""

import numpy as np

from normlab.course.exercise import (
    GLOBAL_ATOMICS,
    SHARED_ACCESSES,
    Answer,
    Case,
    Cost,
    Drawn,
    Exercise,
    Launch,
    Size,
)
from normlab.course.pictures import Picture, readers

BINS = 64


def _numbers(drawn: Drawn) -> np.ndarray:
    """Return the numbers to count: of the kinds "counting" and "equal" all in a bin, of the others some outside."""
    rng, n, bins = drawn.rng, drawn["n"], drawn["bins"]
    if drawn.kind == "counting":
        return (np.arange(n) % bins).astype(np.int32)
    if drawn.kind == "equal":
        return np.full(n, rng.integers(bins), np.int32)
    numbers = rng.integers(0, bins, n)
    outside = rng.random(n) < (0.1 if drawn.kind == "normal" else 0.6)
    strangers = np.array([-bins, -2, -1, bins, bins + 1, 2 * BINS, 2**31 - 1])
    narrow = rng.integers(bins) + np.array([1 << 8, 1 << 16])  # in fewer than 32 bits these are numbers of bins
    return np.where(outside, rng.choice([*strangers, *narrow], n), numbers).astype(np.int32)


def _make(drawn: Drawn) -> Case:
    x, bins = _numbers(drawn), drawn["bins"]
    counts = np.bincount(x[(x >= 0) & (x < bins)], minlength=bins)
    return Case(
        launches=[
            Launch("clear", -(-bins // 32), 32, ("counts",)),
            Launch("histogram", drawn["blocks"], 64, ("x", "counts")),
        ],
        arrays={"x": x, "counts": np.empty(bins, np.int32)},
        want={"counts": Answer(counts.astype(np.float64), 0.0)},
    )


EXERCISE = Exercise(
    name="histogram",
    title="A histogram, counted in private",
    make=_make,
    sizes={
        "n": Size(1, 900, (63, 64, 65), beyond=2000),
        "bins": Size(1, BINS, (1, 2, BINS)),
        "blocks": Size(1, 3, (1, 2), beyond=12),
    },
    kinds=("counting", "normal", "equal", "outside"),
    also=(
        ({"n": 1500, "blocks": 9}, "normal"),  # many blocks, each with many elements
        ({"n": 300, "bins": BINS}, "outside"),  # a bin too many is beyond the end of the block's copy
    ),
    example={"n": 512, "bins": 32, "blocks": 2},
    hints=(
        "Three parts, with a cuda.syncthreads() between two of them: clear, count, add to counts.",
        "Clear: private[thread] = 0, as there are as many threads as elements. Count: "
        "cuda.atomic.add(private, x[i], 1) if 0 <= x[i] < bins, in a loop over i from cuda.grid(1) on, in steps of "
        "cuda.gridsize(1).",
        "At the end: if thread < bins: cuda.atomic.add(counts, thread, private[thread]). Both barriers stand outside "
        "of every if and loop.",
    ),
    costs=(
        Cost(GLOBAL_ATOMICS, "one for each block and bin is enough: count in shared memory"),
        Cost(
            SHARED_ACCESSES,
            "an element needs one atomic operation, a bin one store and one load",
            times=1.5,  # a copy for each of the two warps needs up to 1.46 times as many
        ),
    ),
    tutorial=8,
    picture=Picture(
        readers("x", launch=1),
        "neighbouring threads read neighbouring numbers, and the blocks take turns",
        lambda: _make(Drawn({"n": 400, "bins": 32, "blocks": 2}, "normal", 0)),
    ),
)
