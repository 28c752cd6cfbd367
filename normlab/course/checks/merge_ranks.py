"""Exercise: the merge of all ranks' moments. Solved, in a tree, in `normlab.kernels.ranks`."""

from typing import TYPE_CHECKING

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import (
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
from normlab.course.pictures import Picture, Seen
from normlab.oracle import merged_moments, unit_roundoff

if TYPE_CHECKING:
    from matplotlib.figure import Figure

U = unit_roundoff("float32")
EMPTY = 0.3  # of the ranks, in the middle of a row as at its ends


def _make(drawn: Drawn) -> Case:
    rng, ranks, rows = drawn.rng, drawn["ranks"], drawn["rows"]
    counts = rng.integers(1, drawn["columns"] + 1, ranks) * (rng.random(ranks) >= EMPTY)
    counts[rng.integers(ranks)] = drawn["columns"]  # so that not all of them are empty
    x = values(drawn.kind, rng, rows, int(counts.sum())).astype(np.float64)
    parts = np.split(x, np.cumsum(counts)[:-1], axis=1)
    # Ranks differ by more than chance, or their means' spread would hardly count.
    parts = [part + rng.normal() * (drawn.kind != "equal") for part in parts]
    means, m2s = (
        np.array([of(part, axis=1) * factor if part.size else np.zeros(rows) for part in parts], np.float32)
        for of, factor in ((np.mean, 1), (_m2, 1))
    )
    if drawn.kind == "normal":  # others have means far from 0
        means[rng.choice(np.flatnonzero(counts))] = 0  # a rank with members may have a mean of 0
    return Case(
        launches=[Launch("merge_ranks", -(-rows // 32), 32, ("counts", "means", "m2s", "mean", "variance"))],
        arrays={
            "counts": counts.astype(np.float32),
            "means": means,
            "m2s": m2s,
            "mean": nothing(rows),
            "variance": nothing(rows),
        },
        want=_merged(counts, means, m2s),
    )


def _m2(part: np.ndarray, axis: int) -> np.ndarray:
    return part.var(axis) * part.shape[axis]


def _merged(counts: np.ndarray, means: np.ndarray, m2s: np.ndarray) -> dict[str, Answer]:
    """Return the merge of float32 messages, with bounds for every order of merges.

    Mean: each of the ranks adds at most 4 roundings of numbers up to the largest mean; call the error e. m2: all terms
    are positive, with at most 8 roundings each per rank. A mean that is off by e moves a deviation d between two groups
    by e, and so a merge's term n d² by n (2 d e + e²), where n is at most the smaller group's count. The sum of these n
    over all merges is at most log2(ranks) / 2 times the row's count in any order: less than ranks, and than 4.
    """
    n, ranks = counts.sum(), len(counts)
    whole = merged_moments(counts.tolist(), means.astype(np.float64), m2s.astype(np.float64))
    held = means[counts > 0].astype(np.float64)
    error = 4 * ranks * U * abs(held).max(0)
    apart = held.max(0) - held.min(0)
    spread = whole.m2 / n
    of_variance = 8 * ranks * U * spread + (2 * apart * error + error**2) * min(ranks, 4)
    return {
        "mean": Answer(whole.mean, 1.001 * error),
        "variance": Answer(spread, 1.001 * of_variance),
    }


def _few_ranks() -> Case:
    return _make(Drawn({"ranks": 4, "rows": 6, "columns": 12}, "normal", 3))


def _parts(seen: Seen) -> "Figure":
    """Draw mean and spread of each rank's columns of some rows, and of the whole rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    counts, means, m2s = (seen.arrays[name] for name in ("counts", "means", "m2s"))
    rows = np.arange(means.shape[1])
    for rank, count in enumerate(counts):
        if count:
            spread = np.sqrt(np.maximum(m2s[rank], 0) / count)
            place = rows + 0.12 * (rank - len(counts) / 2)
            axes.errorbar(place, means[rank], spread, fmt="o", capsize=3, label=f"rank {rank}: {count:.0f} columns")
    place = rows + 0.12 * (len(counts) / 2 + 0.5)
    spread = np.sqrt(np.maximum(seen.arrays["variance"], 0))
    axes.errorbar(place, seen.arrays["mean"], spread, fmt="s", capsize=4, color="black", label="merged, by your kernel")
    axes.plot(place, np.asarray(seen.case.want["mean"].value), "_", color="red", markersize=16, label="right mean")
    axes.set(title="A row on several ranks: mean and spread", xlabel="row", xticks=rows)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


EXERCISE = Exercise(
    name="merge_ranks",
    title="A row that lives on several machines",
    make=_make,
    sizes={
        "ranks": Size(1, 8, (1, 2, 3), beyond=40),
        "rows": Size(1, 70, (1, 33, 64), beyond=300),
        "columns": Size(1, 30, (1, 2)),
    },
    kinds=("counting", "normal", "offset", "far"),
    example={"ranks": 4, "rows": 64, "columns": 16},
    hints=(
        "It is exercise 8 in a loop over the ranks. Which three numbers does a group without members have?",
        "Begin with center, m2 and count = 0, and merge one rank after the other into them.",
        "chan_merge(center, m2, count, means[rank, row], m2s[rank, row], counts[rank]) returns the new three; the "
        "variance is m2 / count. Threads past the last row must not load or store.",
    ),
    costs=(
        Cost(LOADS, "two walks along the ranks are enough", times=2),
        Cost(LOADED_SECTORS, NEIGHBOURS_LOADED, times=2),
    ),
    tutorial=16,
    picture=Picture(
        _parts,
        "the merged mean lies among the ranks' means, nearer to those with more columns; its spread covers all of them",
        _few_ranks,
    ),
)
