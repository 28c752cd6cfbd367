"""What was counted, for people and for programs: the ladder's table, a step line by line, pages, JSON."""

import json
from pathlib import Path

from rich.console import Console

from normlab.learn.xray.traced import Problem, StepTrace
from normlab.measure.tables import room
from normlab.sim import METRICS
from normlab.sim.tracing.counts import number
from normlab.sim.tracing.tables import fitted, lines_text, title

# The columns of the ladder's table: what every step has, then what tells steps apart.
COLUMNS = [name for name in METRICS if "bytes" not in name and "sectors_per_request" not in name]


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
    width = room(console)
    console.print(f"{problem.title}, traced in the simulator\n", style="bold", soft_wrap=width is None)
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
