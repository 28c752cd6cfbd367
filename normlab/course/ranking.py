"""Rank the solutions of an exercise by cost: counts of a deterministic simulator, the same on every machine.

A time would depend on the machine and its other work. Only right solutions take part, because a wrong solution can
cost nothing.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from normlab.course.exercise import (
    BARRIERS,
    LOADED_SECTORS,
    SHARED_LOADS,
    SHARED_STORES,
    SHUFFLES,
    STORED_SECTORS,
)


class Cost(NamedTuple):
    """The counts of a solution, summed over the launches whose costs are counted. Tuples compare field by field.

    Sectors of global memory come first, because they bound most kernels here. Then come wavefronts of shared memory,
    barriers of blocks and shuffles of warps.
    """

    sectors: int
    wavefronts: int
    barriers: int
    shuffles: int


METRICS = {
    "sectors": (LOADED_SECTORS, STORED_SECTORS),
    "wavefronts": (SHARED_LOADS, SHARED_STORES),
    "barriers": (BARRIERS,),
    "shuffles": (SHUFFLES,),
}


class Place(NamedTuple):
    """A place in the ranking of an exercise, and the students who share it because their solutions cost the same.

    rank: 1 plus the number of students whose solutions cost less.
    """

    rank: int
    cost: Cost
    names: list[str]


def cost(launches: Iterable[dict[str, Any]]) -> Cost:
    """Return the summed cost of launches, each counted by `costs.costs`."""
    found = list(launches)
    return Cost(
        **{field: sum(one["metrics"][name] for one in found for name in names) for field, names in METRICS.items()}
    )


def ranking(entries: Iterable[tuple[str, Cost]]) -> list[Place]:
    """Return the places of students, the cheapest first.

    >>> cheap, dear = Cost(4, 0, 0, 5), Cost(4, 0, 1, 0)
    >>> [(place.rank, place.names) for place in ranking([("eve", dear), ("bob", cheap), ("ada", cheap)])]
    [(1, ['ada', 'bob']), (3, ['eve'])]
    """
    found: defaultdict[Cost, list[str]] = defaultdict(list)
    for name, cost in sorted(entries):
        found[cost].append(name)
    costs = sorted(found)
    better = accumulate((len(found[cost]) for cost in costs), initial=0)
    return [Place(1 + before, cost, found[cost]) for cost, before in zip(costs, better, strict=False)]
