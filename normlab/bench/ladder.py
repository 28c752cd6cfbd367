"""Measure every step of a ladder on one problem, and what its kernels occupy of the GPU: `normlab bench ladder`.

A step's time is that of the whole call. Then its kernels are timed one by one; the table shows registers and occupancy
of the slowest kernel.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

from normlab.bench.check import Check
from normlab.bench.contenders import Ours
from normlab.bench.norm import attempted, copy_time, enter, failure, free_memory
from normlab.bench.problem import EPS, Data, Problem
from normlab.host.arrays import backend_of
from normlab.kernels import LADDERS, Step
from normlab.kernels import problem as operands
from normlab.measure.timing import Timer


class Launch(NamedTuple):
    """One launch of a step, as it asked for it."""

    kernel: Any
    grid: int | tuple
    block: int | tuple
    arguments: tuple
    options: dict[str, Any]

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return prod(self.block) if isinstance(self.block, tuple) else self.block


Occupancy = Callable[[Launch], dict[str, Any]]


def climb(
    problem: Problem,
    timer: Timer,
    occupancy: Occupancy,
    device: str,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return every step of the ladder of the problem's direction, as a record holds it, the slowest first.

    A problem that cannot be measured at all has "status": "unable" and a "reason", as its steps have.
    """
    record = attempted(problem, lambda: _climb(problem, timer, occupancy, device, advance))
    if "steps" not in record:
        del record["contenders"]
        left = {"status": "unable", "reason": record["reason"]}
        record["steps"] = [{"step": one.name, "summary": one.summary, **left} for one in LADDERS[problem.direction]]
    return record


def _climb(
    problem: Problem, timer: Timer, occupancy: Occupancy, device: str, advance: Callable[[], None]
) -> dict[str, Any]:
    data = problem.draw(device)
    check = Check(problem, data)
    copied = copy_time(data, timer)
    bandwidth = 2 * problem.array_bytes / copied.median
    steps = []
    for step in LADDERS[problem.direction]:
        entry = enter(Ours(step=step.name), problem, data, check, timer, bandwidth)
        if entry["status"] == "ok":
            entry |= one_by_one(step, problem, data, timer, occupancy)
        steps.append({"step": step.name, "summary": step.summary, **entry})
        advance()
    steps.sort(key=lambda entry: -entry.get("median_us", float("inf")))
    copy = {**copied.as_dict(), "gb_per_s": round(bandwidth / 1e9, 1)}
    return {**vars(problem), "bytes": problem.bytes, "copy": copy, "steps": steps}


def one_by_one(
    step: Step, problem: Problem, data: Data, timer: Timer, occupancy: Occupancy
) -> dict[str, list[dict[str, Any]] | str]:
    """Return the "kernels" of a timed step; where memory does not suffice, none, and a "no_kernels" that says why."""
    try:
        return {"kernels": kernels(step, problem, data, timer, occupancy)}
    except (RuntimeError, MemoryError) as error:
        reason = failure(error)
    free_memory()
    return {"kernels": [], "no_kernels": reason}


def kernels(step: Step, problem: Problem, data: Data, timer: Timer, occupancy: Occupancy) -> list[dict[str, Any]]:
    """Return a step's launches in order: name, grid, block, time, and what `occupancy` says of them."""
    run = backend_of({"x": data.x}, {}).launch
    entries = []
    for one in launches(step, problem, data):
        timed = timer(partial(run, one.kernel, one.grid, one.block, *one.arguments, **one.options))
        entries.append(
            {
                "kernel": one.kernel.py_func.__name__,
                "grid": one.grid,
                "block": one.block,
                **timed.as_dict(),
                **occupancy(one),
            }
        )
    return entries


def launches(step: Step, problem: Problem, data: Data) -> list[Launch]:
    """Return what a step launches for a problem, in order, by running it once."""
    backend = backend_of({"x": data.x}, {})
    recorded: list[Launch] = []

    def launch(kernel: Any, grid: Any, block: Any, *arguments: Any, **options: Any) -> None:
        recorded.append(Launch(kernel, grid, block, arguments, options))
        backend.launch(kernel, grid, block, *arguments, **options)

    given = {"x": data.x, "saved": data.x, "weight": data.weight, "bias": data.bias, "grad_output": data.grad_output}
    if problem.direction == "backward":
        _, given["mean"], given["invvar"] = Ours().forward(data)()

    def operand(name: str, like: Any) -> Any:
        return backend.operand(given[name], like.shape) if name in given else backend.empty(like.shape, like.dtype)

    asked = operands.Problem(problem.direction, problem.norm, problem.n1, problem.n2, problem.dtype)
    step.run(launch, backend, operands.with_arrays(asked.described(), EPS, operand))
    return recorded
