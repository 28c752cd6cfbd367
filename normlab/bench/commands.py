"""Make the records of `normlab bench norm`, `sweep`, `family`, `ladder` and `host` on a GPU, from checked arguments.

A record says what it is ("norm", "sweep", "family", "ladder", "sgemm" or "host"), where, when and how it was made
(`normlab.bench.machine`), and has all the numbers, times in microseconds. `normlab.bench.records` writes it, `tables`
and `report` show it.
"""

from collections.abc import Callable
from typing import Any

from normlab.bench import host as host_bench
from normlab.bench import product
from normlab.bench.contenders import OURS, load_peers, ours
from normlab.bench.family import FamilyProblem
from normlab.bench.family import compete as family_rows
from normlab.bench.ladder import climb
from normlab.bench.machine import NotFitError, peak
from normlab.bench.norm import compete, failure
from normlab.bench.occupancy import of_launch
from normlab.bench.problem import Problem, problems
from normlab.kernels import LADDERS
from normlab.measure.provenance import provenance
from normlab.measure.timing import METHOD, EventTimer

Advance = Callable[[], None]
DEVICE = "cuda"


def norm(wanted: list[Problem], peers: list[str], paths: str, advance: Advance) -> dict[str, Any]:
    """Return the record of `compete` on the GPU; `paths` as in `contenders.ours`."""
    found, absent = load_peers(peers)
    rows = compete(wanted, [*ours(paths), *found], _timer(), DEVICE, advance)
    return {"what": "norm", **provenance(), "method": METHOD, "absent": absent, **left_out(rows, wanted), "rows": rows}


def sweep(wanted: list[Problem], seed: int, peers: list[str], advance: Advance) -> dict[str, Any]:
    """Return the record of `compete` at drawn shapes, with both paths of normlab's backward."""
    return {**norm(wanted, peers, "both", advance), "what": "sweep", "seed": seed}


def family(wanted: list[FamilyProblem], advance: Advance) -> dict[str, Any]:
    """Return the record of the norm family beside PyTorch on the GPU."""
    rows = family_rows(wanted, _timer(), DEVICE, advance)
    return {"what": "family", **provenance(), "method": METHOD, **left_out(rows, wanted), "rows": rows}


def left_out(rows: list, wanted: list) -> dict[str, int]:
    """Return how many problems an interruption left unmeasured, as a record has it; {} for none."""
    return {"left_out": len(wanted) - len(rows)} if len(rows) < len(wanted) else {}


def ladder(problem: Problem, advance: Advance) -> dict[str, Any]:
    """Return the record of `climb` on the GPU."""
    return {
        "what": "ladder",
        **provenance(),
        "method": METHOD,
        **climb(problem, _timer(), of_launch, DEVICE, advance),
    }


def sgemm(size: product.Size, advance: Advance) -> dict[str, Any]:
    """Return the record of the SGEMM ladder's `climb` on the GPU."""
    climbed = product.climb(size, _timer(), of_launch, DEVICE, peak(), advance)
    return {"what": "sgemm", **provenance(), "method": product.METHOD, **climbed}


def host(norms: list[str], directions: list[str], peers: list[str]) -> dict[str, Any]:
    """Return the record of host times on the GPU's machine."""
    found, absent = load_peers(peers)
    wanted = problems(norms, directions, [host_bench.DTYPE], [host_bench.SHAPE[0]], [host_bench.SHAPE[1]])
    rows = host_bench.measure(wanted, [*ours("saved"), *found], host_bench.eager_time, host_bench.replay_time, DEVICE)
    names = [OURS, *(name for name in peers if name not in absent)]
    return {
        "what": "host",
        **provenance(),
        "method": host_bench.METHOD,
        "absent": absent,
        "rows": rows,
        "first_calls": host_bench.first_calls(names, host_bench.first_call),
    }


def _timer() -> EventTimer:
    """Return an `EventTimer`; NotFitError where another process has taken all of the GPU's memory."""
    try:
        return EventTimer()
    except RuntimeError as error:
        raise NotFitError(f"the GPU has no room for the buffer that empties its L2 ({failure(error)})") from None


def steps(ladder: str) -> int:
    """Return how many steps a ladder has; of SGEMM's, cuBLAS counts as one more."""
    return len(LADDERS[ladder]) + (ladder == "sgemm")
