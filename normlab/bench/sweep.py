"""Draw shapes that no table was tuned to, and say how the speeds at them are distributed: `normlab bench sweep`.

A table of fast layouts is fast at the shapes in the table. Drawn shapes show the ones between.
"""

from collections.abc import Iterable
from random import Random
from statistics import median
from typing import Any

from normlab.bench.choices import DEFAULT_DTYPES
from normlab.bench.norm import ahead, best_peer, by_recomputing, own
from normlab.bench.problem import DIRECTIONS, ELEMENTS, NORMS, Problem
from normlab.measure.numbers import fixed
from normlab.measure.tables import NORMS as NAMES
from normlab.measure.tables import Grid

COUNT = 60  # draws
PEERS = ("torch", "compile", "liger", "quack")
LONGEST = 2**18  # columns
LARGE = 2**24  # elements of x; a copy of fewer does not fill the GPU for long enough to compare with
LONG = 256  # columns
# The bars of `distribution`: normlab's speed over that of a copy, of the best peer, and of saving the input.
OF_COPY = {"forward": 0.93, "backward": 0.88}
OF_PEER = OF_INPUT = 0.97
WORST = 10  # rows of the table of the worst shapes


def draw(seed: int, count: int) -> list[Problem]:
    """Return so many problems, the same for the same seed.

    n2 is log-uniform from 1 to LONGEST, and every second one is no multiple of 8. n1 is log-uniform from 1 to as many
    rows as ELEMENTS have. Norm, direction and dtype are any.
    """
    random = Random(seed)

    def log_uniform(most: int) -> int:
        return min(most, int((most + 1) ** random.random()))

    found = []
    for number in range(count):
        n2 = log_uniform(LONGEST)
        if number % 2:
            n2 -= n2 % 8 == 0  # one column less than a multiple of 8
        else:
            n2 = max(8, n2 // 8 * 8)
        n1 = log_uniform(ELEMENTS // n2)
        found.append(
            Problem(random.choice(NORMS), random.choice(DIRECTIONS), random.choice(DEFAULT_DTYPES), n1, n2)
        )  # fmt: skip
    return found


def sweep_grids(record: dict[str, Any]) -> list[Grid]:
    """Return two tables: how the speeds are distributed, and the shapes at which normlab is worst beside its peers."""
    rows = [row for row in record["rows"] if "status" not in row]
    title = f"{len(rows)} shapes drawn with seed {record['seed']}"
    head = ["what", "draws", "least", "median", "bar", "reach it"]
    return [Grid(title, head, distribution(rows)), worst(rows)]


def distribution(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return a line for each kind of speed: over how many draws, the least, the median, the bar, how many reach it."""
    large = [row for row in rows if row["n1"] * row["n2"] >= LARGE and row["n2"] >= LONG]
    lines = [
        _line(
            f"{direction} / copy, 2^24 elements or more",
            (_of_copy(row) for row in large if row["direction"] == direction),
            bar,
        )
        for direction, bar in OF_COPY.items()
    ]
    leads = (ahead(row) if own(row) else 0.0 for row in rows if best_peer(row))
    return [
        *lines,
        _line("normlab / best peer", (lead for lead in leads if lead is not None), OF_PEER),
        _line("backward, output saved / input saved", [1 / times for times in by_recomputing(rows)], OF_INPUT),
    ]


def _of_copy(row: dict[str, Any]) -> float:
    """Return normlab's fraction of a copy's speed; 0 where its results are wrong."""
    entry = own(row)
    return entry["of_copy"] if entry else 0.0


def _line(what: str, speeds: Iterable[float], bar: float) -> list[str]:
    found = list(speeds)
    if not found:
        return [what, "0", "-", "-", fixed(bar), "-"]
    reached = f"{100 * sum(speed >= bar for speed in found) / len(found):.0f} %"
    return [what, str(len(found)), fixed(min(found)), fixed(median(found)), fixed(bar), reached]


def worst(rows: list[dict[str, Any]]) -> Grid:
    """Return the shapes with the lowest speed beside the best peer's; those with wrong results come first."""
    leads = [(ahead(row) or 0.0, row) for row in rows if best_peer(row)]
    body = [
        [
            f"{NAMES[row['norm']]} {row['direction']}", row["dtype"], str(row["n1"]), str(row["n2"]),
            fixed(_of_copy(row)), best_peer(row) or "", fixed(lead),
        ]
        for lead, row in sorted(leads, key=lambda one: one[0])[:WORST]
    ]  # fmt: skip
    head = ["norm", "dtype", "n1", "n2", "of copy", "best peer", "normlab / best"]
    return Grid(f"The worst {len(body)} beside the best peer", head, body)
