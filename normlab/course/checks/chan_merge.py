"""Exercise: Chan's merge of two groups. Solved in `normlab.stages.moments.chan_merge`."""

from typing import TYPE_CHECKING

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, Seen
from normlab.oracle import unit_roundoff

if TYPE_CHECKING:
    from matplotlib.figure import Figure

U = unit_roundoff("float32")


def _group(drawn: Drawn, rng: np.random.Generator, most: int) -> np.ndarray:
    """Return mean, m2 and count of a group for each pair, (3, pairs)."""
    counts = rng.integers(1, most + 1, drawn["pairs"])
    members = [values(drawn.kind, rng, count) for count in counts]
    return np.array([[v.mean(), v.var() * v.size, v.size] for v in members], np.float32).T.copy()


def _make(drawn: Drawn) -> Case:
    rng, pairs = drawn.rng, drawn["pairs"]
    a, b = _group(drawn, rng, drawn["values"]), _group(drawn, rng, max(1, drawn["values"] // 2))
    return Case(
        launches=[Launch("merge_pairs", -(-pairs // 32), 32, ("a", "b", "merged"))],
        arrays={"a": a, "b": b, "merged": nothing(3, pairs)},
        want={"merged": _merged(a.astype(np.float64), b.astype(np.float64))},
    )


def _merged(a: np.ndarray, b: np.ndarray) -> Answer:
    """Return the merge of float32 groups, and its bound.

    Mean: delta, share and product round once each by at most u |delta| <= u (|a| + |b|), the sum by u max(|a|, |b|);
    (n_a a + n_b b) / n rounds less. m2: all terms are positive, with 8 roundings at most.
    """
    (mean_a, m2_a, count_a), (mean_b, m2_b, count_b) = a, b
    count, delta = count_a + count_b, mean_b - mean_a
    m2 = m2_a + m2_b + delta**2 * count_a * count_b / count
    bounds = 4 * U * (abs(mean_a) + abs(mean_b)), 8 * U * m2, np.zeros_like(count)
    return Answer(np.array([mean_a + delta * count_b / count, m2, count]), 1.001 * np.array(bounds))


def _groups(seen: Seen) -> "Figure":
    """Draw mean and spread of some pairs of groups, and of the merged group."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for place, (name, words) in enumerate((("a", "a"), ("b", "b"), ("merged", "merged, by your function"))):
        mean, m2, count = seen.arrays[name][:, :8]
        pairs = np.arange(len(mean)) + 0.22 * (place - 1)
        spread = np.sqrt(np.maximum(m2, 0) / np.maximum(count, 1))
        axes.errorbar(pairs, mean, spread, fmt="o", capsize=4, label=f"{words}: mean and spread")
        for pair, one, n in zip(pairs, mean, count, strict=True):
            if np.isfinite(n):
                axes.annotate(f"{n:.0f}", (pair, one), (4, 2), textcoords="offset points", fontsize=7)
    right = np.asarray(seen.case.want["merged"].value)[0, :8]
    axes.plot(np.arange(len(right)) + 0.22, right, "_", color="black", markersize=14, label="right mean")
    axes.set(title="Two groups become one (numbers: how many values)", xlabel="pair", xticks=range(len(right)))
    axes.legend(fontsize=8)
    return figure


EXERCISE = Exercise(
    name="chan_merge",
    title="Two groups become one: Chan's merge",
    make=_make,
    sizes={"pairs": Size(1, 40, (1, 33), beyond=300), "values": Size(1, 30, (1, 50))},
    example={"pairs": 32, "values": 9},
    hints=(
        "Two groups of 1 value each, 2 and 4: the mean is 3, m2 is 2, the count is 2. Do your lines say so?",
        "How much of the way from mean_a to mean_b is the new mean? The share of b's values: count_b / count.",
        "count first, then delta = mean_b - mean_a and share_b = count_b / count; m2 is both m2 and "
        "delta * delta * count_a * share_b.",
    ),
    tutorial=3,
    picture=Picture(
        _groups,
        "the merged mean lies between the two, nearer to the larger group; its spread covers both",
    ),
)
