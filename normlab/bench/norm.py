"""Measure how close to a copy's speed each contender comes, shape by shape: `normlab bench norm`.

`compete` takes any timer and any device: an `EventTimer` on the GPU, a made-up timer in the tests.
"""

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from normlab.bench.check import Check
from normlab.bench.contenders import OURS, RECOMPUTED, Contender
from normlab.bench.problem import Data, Problem
from normlab.measure.timing import Spread, Timer


def compete(
    problems: list[Problem],
    contenders: list[Contender],
    timer: Timer,
    device: str,
    advance: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Return a row for every problem, as a record holds it; `advance` is called after each."""

    def row(problem: Problem) -> dict[str, Any]:
        data = problem.draw(device)
        entrants = [one for one in contenders if problem.direction in one.directions]
        return race(problem, data, entrants, Check(problem, data), timer)

    return measured(problems, row, advance)


def attempted(problem: Any, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return `measure()`, or the row of a problem that could not be measured at all, and why.

    Such a problem does not fit into the memory of the GPU or of the host: its arrays, their copy or their check. The
    other problems are measured all the same. Its row has "status": "unable" and a "reason", no copy and no contender.
    """
    try:
        return measure()
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        reason = failure(error)
    free_memory()  # out here the error is gone, and with it the frames that hold the arrays
    unable: dict[str, Any] = {"status": "unable", "reason": reason, "copy": None, "contenders": {}}
    return {**vars(problem), "bytes": problem.bytes, **unable}


def free_memory() -> None:
    """Give back the device's memory that nothing uses."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def measured(
    problems: list[Any], row: Callable[[Any], dict[str, Any]], advance: Callable[[], None]
) -> list[dict[str, Any]]:
    """Return the row of every problem, by `attempted`; after Ctrl-C the rows so far, unless there is none."""
    rows = []
    try:
        for problem in problems:
            rows.append(attempted(problem, partial(row, problem)))
            advance()
    except KeyboardInterrupt:
        if not rows:
            raise
    return rows


def race(problem: Any, data: Data, entrants: list[Any], check: Any, timer: Timer) -> dict[str, Any]:
    """Return a problem's row: the speed of a copy, and every contender beside it."""
    copied = copy_time(data, timer)
    bandwidth = 2 * problem.array_bytes / copied.median
    return {
        **vars(problem),
        "bytes": problem.bytes,
        "copy": {**copied.as_dict(), "gb_per_s": round(bandwidth / 1e9, 1)},
        "contenders": {one.name: enter(one, problem, data, check, timer, bandwidth) for one in entrants},
    }


def copy_time(data: Data, timer: Timer) -> Spread:
    """Return the time of a copy of x, the ceiling: it reads and writes as much as a forward."""
    target = data.x.clone()
    return timer(lambda: target.copy_(data.x))


def enter(
    contender: Contender, problem: Problem, data: Data, check: Check, timer: Timer, bandwidth: float
) -> dict[str, Any]:
    """Run a contender once and look at its results; time it only if they are right.

    `bandwidth`: bytes a second of a copy. The entry's "status": "ok", "wrong" or "unable", the latter two with a
    "reason".
    """
    try:
        call = getattr(contender, problem.direction)(data)
        worst = check.worst(contender, call())
        if wrong := [f"{name} is off by {ratio:.3g} times its bound" for name, ratio in worst.items() if ratio > 1]:
            return {"status": "wrong", "reason": "; ".join(wrong)}
        timed = timer(call)
    except Exception as error:  # whatever a peer raises on a shape or a dtype that it does not have
        return {"status": "unable", "reason": failure(error)}
    speed = problem.bytes / timed.median
    return {
        "status": "ok",
        **timed.as_dict(),
        "gb_per_s": round(speed / 1e9, 1),
        "of_copy": round(speed / bandwidth, 4),
        "error_over_bound": round(max(worst.values()), 4),
    }


def failure(error: Exception) -> str:
    """Return what went wrong, in one line."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def best_peer(row: dict[str, Any]) -> str | None:
    """Return the fastest right contender that is not normlab; None where there is none."""
    peers = {
        name: entry["median_us"]
        for name, entry in row["contenders"].items()
        if name not in (OURS, RECOMPUTED) and entry["status"] == "ok"
    }
    return min(peers, key=lambda name: peers[name]) if peers else None


def own(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return normlab's entry, the recomputing one where there is no other; None unless it is right."""
    entry = row["contenders"].get(OURS) or row["contenders"].get(RECOMPUTED)
    return entry if entry and entry["status"] == "ok" else None


def by_recomputing(rows: list[dict[str, Any]]) -> list[float]:
    """Return how many times as long each backward from the saved output takes as the one from the input.

    Rows in which one of the two is missing, wrong or unable are left out.
    """
    pairs = [[row["contenders"].get(name, {"status": "absent"}) for name in (RECOMPUTED, OURS)] for row in rows]
    right = [pair for pair in pairs if all(entry["status"] == "ok" for entry in pair)]
    return [recomputed["median_us"] / saved["median_us"] for recomputed, saved in right]


def ahead(row: dict[str, Any]) -> float | None:
    """Return normlab's speed over the best peer's; None where one of the two is missing."""
    best, entry = best_peer(row), own(row)
    return row["contenders"][best]["median_us"] / entry["median_us"] if best and entry else None
