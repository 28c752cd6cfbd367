"""The ladder's X-ray: every step of a ladder traced on one problem, what `normlab trace` shows."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from normlab.arguments import FLOATS, statistics_dtype, step_of
from normlab.kernels import LADDERS, BackwardProblem, Step
from normlab.sim import METRICS, Trace, trace
from normlab.sim.tracing import Counts
from normlab.sim.tracing.tables import NARROWEST, fitted, lines_text, number, title

EPS = 1e-5
SLOWER = 5  # times that a traced kernel takes, compared with a simulated one
# The columns of the ladder's table: what every step has, then what tells steps apart.
COLUMNS = [name for name in METRICS if "bytes" not in name and "sectors_per_request" not in name]
RESULTS = ("grad_input", "grad_weight", "grad_bias")  # of the backward


@dataclass(frozen=True)
class StepTrace:
    """A step's launches, each traced, in order."""

    step: Step
    traces: list[Trace]
    results: list[str]  # what each launch computes of the backward's results, "grad_weight" say; or nothing

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of all its launches together; unique bytes count once a launch."""
        total = Counts()
        for one in self.traces:
            total.add(one.counts)
            total.unique.ld += one.counts.unique.ld
            total.unique.st += one.counts.unique.st
        return total.metrics()


@dataclass(frozen=True)
class Problem:
    """What the steps of a ladder are traced on: (n1, n2) elements of `dtype`, the same for input and parameters."""

    ladder: str
    n1: int
    n2: int
    dtype: str = "float32"
    rms: bool = False
    memory_efficient: bool = False

    def seconds(self, steps: list[Step]) -> float:
        """Return about how long it takes to trace `steps`."""
        return SLOWER * sum(step.simulated_seconds(self.n1, self.n2) for step in steps)

    def trace(self, step: Step) -> StepTrace:
        """Return a step's launches on fresh random data, traced."""
        traces: list[Trace] = []
        results: list[str] = []
        named: dict[int, str] = {}  # the identity of a result's array → its name

        def launch(
            kernel: Any, grid: Any, block: Any, *arguments: Any, shared_bytes: int = 0, cluster: int = 1
        ) -> None:
            traces.append(trace(kernel, cluster=cluster)[grid, block, 0, shared_bytes](*arguments))
            results.append("-".join(named[id(one)] for one in arguments if id(one) in named))

        if self.ladder == "forward":
            step.run(launch, *self._forward_operands())
        else:
            problem = self._backward_problem()
            named = {id(getattr(problem, name)): name for name in RESULTS if getattr(problem, name) is not None}
            step.run(launch, Scratch, problem)
        return StepTrace(step, traces, results)

    def _arrays(self, *shapes: tuple[int, ...]) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.normal(size=shape).astype(FLOATS[self.dtype]) for shape in shapes]

    def _forward_operands(self) -> tuple:
        x, weight, bias, output = self._arrays((self.n1, self.n2), (self.n2,), (self.n2,), (self.n1, self.n2))
        statistics = FLOATS[statistics_dtype(self.dtype)]
        mean, invvar = np.empty((2, self.n1), statistics)
        if self.rms:
            return x, weight, None, statistics.type(EPS), output, None, invvar
        return x, weight, bias, statistics.type(EPS), output, mean, invvar

    def _backward_problem(self) -> BackwardProblem:
        rows = self.n1, self.n2
        grad_output, saved, weight, bias, grad_input = self._arrays(rows, rows, (self.n2,), (self.n2,), rows)
        statistics = FLOATS[statistics_dtype(self.dtype)]
        return BackwardProblem(
            grad_output=grad_output,
            saved=saved,
            mean=None if self.rms or self.memory_efficient else np.zeros(self.n1, statistics),
            invvar=np.ones(self.n1, statistics),
            weight=weight,
            bias=None if self.rms else bias,
            eps=statistics.type(EPS),
            rms=self.rms,
            memory_efficient=self.memory_efficient,
            grad_input=grad_input,
            grad_weight=np.empty_like(weight),
            grad_bias=None if self.rms else np.empty_like(bias),
        )


class Scratch:
    """Memory for a step's partial results."""

    empty = staticmethod(np.empty)
    zeros = staticmethod(np.zeros)


def steps_of(name: str) -> tuple[str, list[Step]]:
    """Return ladder and steps that "LADDER" or "LADDER/STEP" names; raises ValueError for one that is not there."""
    ladder, slash, step = name.partition("/")
    if ladder not in LADDERS:
        raise ValueError(f"unknown ladder {ladder!r}: choose one of {', '.join(LADDERS)}")
    if slash and not step:
        raise ValueError(
            f"{name!r} names no step: {ladder!r} alone means all of them, and {ladder}/{LADDERS[ladder][0].name} one"
        )
    return ladder, [step_of(ladder, step)] if step else list(LADDERS[ladder])


def shape_of(text: str) -> tuple[int, int]:
    """Return rows and columns of "8x256"; raises ValueError for anything else."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(f"a shape is rows x columns, such as 8x256, both at least 1; got {text!r}")
    return int(parts[0]), int(parts[1])


def save(result: StepTrace, path: Path) -> list[Path]:
    """Write a page for every launch of a step: `path`, or if there are several, `path` with kernel and result."""
    if len(result.traces) == 1:
        return [result.traces[0].save(path)]
    pages = []
    for position, (one, computed) in enumerate(zip(result.traces, result.results, strict=True), start=1):
        parts = [path.stem, str(position), one.kernel, *([computed] if computed not in one.kernel else [])]
        pages.append(one.save(path.with_name("-".join(parts) + path.suffix)))
    return pages


def show(problem: Problem, results: list[StepTrace], console: Console, by_line: bool) -> None:
    """Print the ladder's table, or one step line by line; a terminal gets no wider lines than it has room for."""
    width = max(console.width, NARROWEST) if console.is_terminal else None
    what = f"{'RMSNorm' if problem.rms else 'LayerNorm'} {problem.ladder}"
    path = ", recomputed from the output" if problem.memory_efficient else ""
    head = f"{what}{path}, {problem.n1} x {problem.n2} {problem.dtype}, traced in the simulator\n"
    console.print(head, style="bold", soft_wrap=width is None)
    if by_line:
        launches = list(zip(results[0].traces, results[0].results, strict=True))
        for position, (one, computed) in enumerate(launches, start=1):
            which = f"launch {position} of {len(launches)}: " if len(launches) > 1 else ""
            print(f"{which}{title(one)}{f' for {computed}' if computed else ''}", file=console.file)
            print(lines_text(one, width, files=True), file=console.file)
            console.print()
    else:
        print(fitted(ladder_rows(results), width), file=console.file)
        foot = "\nwhole launches; LADDER/STEP shows one line by line, --json every metric"
        console.print(foot, style="dim", soft_wrap=width is None)


def ladder_rows(results: list[StepTrace]) -> list[list[str]]:
    """Return a head, then a row for every step; only columns in which some step has a value."""
    metrics = [result.metrics for result in results]
    names = [name for name in COLUMNS if any(row[name] for row in metrics)]
    head = ["step", *(METRICS[name].short for name in names), "moved/unique bytes"]
    rows = [
        [result.step.name, *(number(row[name]) if row[name] else "" for name in names), f"{_excess(row):.2f}"]
        for result, row in zip(results, metrics, strict=True)
    ]
    return [head, *rows]


def _excess(metrics: dict[str, float]) -> float:
    moved, unique = (
        sum(value for name, value in metrics.items() if name.startswith(f"normlab__bytes_{kind}"))
        for kind in ("moved", "unique")
    )
    return moved / unique if unique else 0.0


def as_json(problem: Problem, results: list[StepTrace]) -> str:
    """Return everything that was counted."""
    steps = [
        {
            "step": result.step.name,
            "metrics": result.metrics,
            "launches": [one.as_dict() for one in result.traces],
        }
        for result in results
    ]
    return json.dumps({**vars(problem), "steps": steps}, indent=2)
