"""Write the HTML page of `Trace.save`. The page needs no network and no server.

On its left side is the source, on its right side the counters and maps of the chosen line, of the launch, of its arrays
and of its threads. This file collects the data, and `listing` the source; `page.html.j2` arranges both; `page.js` draws
the maps, from the same layouts as the matplotlib pictures.
"""

from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from normlab.sim.language.source import NO_SOURCE, Line, file_name
from normlab.sim.tracing.counts import METRICS, number
from normlab.sim.tracing.data import TraceData
from normlab.sim.tracing.pictures.arrows import tree
from normlab.sim.tracing.pictures.grid import heat_grid
from normlab.sim.tracing.pictures.maps import bank_map, sector_map
from normlab.sim.tracing.pictures.words import count, maker, subject
from normlab.sim.tracing.report.listing import sections
from normlab.sim.tracing.report.template import page_template
from normlab.sim.tracing.request import Request
from normlab.sim.tracing.tables import title

MOST_REQUESTS = 64  # of one line and array, to look at one by one
MOST_ARROWS = 4000


class Column(NamedTuple):
    """A column of numbers beside the source: the sum of all metrics whose names contain one of `parts`."""

    meaning: str
    parts: tuple[str, ...]


COLUMNS = {
    "sectors": Column("32-byte sectors of global memory", ("t_sectors_pipe_lsu_mem_global",)),
    "wavefronts": Column("wavefronts of shared memory", ("wavefronts_mem_shared",)),
    "atomics": Column("atomic operations, each lane's", ("normlab__atomics",)),
    "syncs": Column(
        "barriers, shuffles, votes, warp, cluster and grid syncs",
        ("normlab__barriers.sum", "normlab__shuffles.sum", "normlab__votes.sum", "_syncs.sum"),
    ),
}


def write(trace: TraceData, path: Path) -> Path:
    """Write the page of `trace` and return its path.

    Raises FileNotFoundError where the folder does not exist, IsADirectoryError where `path` is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(f"the report needs the name of a file, and {str(path)!r} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")
    # UTF-8 on every system, as the page says in its head: a kernel's source may have γ or ×.
    path.write_text(page(trace), encoding="utf-8")
    return path


def page(trace: TraceData) -> str:
    """Return the page's HTML."""
    costs = {row.line: _cost(row.metrics) for row in trace.by_line()}
    requests = {row.line: _requests(trace, row.line) for row in trace.by_line()}
    # One list for the page's data; a panel of a line refers to its requests by their places in it.
    every = [request for groups in requests.values() for group in groups for request in group]
    # By id, because two requests of one line may be equal in all that they hold.
    places = {id(request): place for place, request in enumerate(every)}
    return page_template(Path(__file__).parent).render(
        trace=trace,
        title=title(trace),
        sections=sections(trace.file, trace.first_line, (row.line for row in trace.by_line())),
        columns={
            name: column.meaning for name, column in COLUMNS.items() if any(cost[name] for cost in costs.values())
        },
        costs=costs,
        # What a column's shades are relative to: its own costliest line, because units differ between columns.
        most={name: max((cost[name] for cost in costs.values()), default=0) for name in COLUMNS},
        numbers={line: place for place, line in enumerate(costs)},
        by_line={row.line: row.metrics for row in trace.by_line()},
        requests=requests,
        place=lambda request: places[id(request)],
        metrics=METRICS,
        number=number,
        file_name=file_name,
        no_source=NO_SOURCE,
        count=count,
        data={"requests": [_request(request) for request in every], "heats": _heats(trace), "tree": _tree(trace)},
    )


def _cost(metrics: dict[str, float]) -> dict[str, int]:
    """Return the numbers that stand beside a line, one for each of COLUMNS, from the line's metrics."""
    return {
        name: int(sum(value for metric, value in metrics.items() if any(part in metric for part in column.parts)))
        for name, column in COLUMNS.items()
    }


def _requests(trace: TraceData, line: Line) -> list[list[Request]]:
    """Return the kept requests of a line, those of one operation on one array together, the costliest first."""
    try:
        kept = trace.requests(line.number, file=line.file)
    except ValueError:  # the line only synchronises
        return []
    # Maps of one group look alike and can be looked at one after the other; a load and a store have pictures apart.
    groups: dict[tuple[str, str, str], list[Request]] = {}
    for request in kept:
        groups.setdefault((request.space, request.operation, request.array), []).append(request)
    return [sorted(group, key=lambda one: -one.cost)[:MOST_REQUESTS] for group in groups.values()]


def _request(request: Request) -> dict[str, Any]:
    """Return a request's map for page.js: of banks for shared memory, of sectors for any other."""
    # `asdict` has the fields of a map. Its `numbers` are a property, and so are written in here.
    words: dict[str, Any] = {"subject": subject(request), "array": request.array, "lanes": request.lanes}
    seen = bank_map(request) if request.space == "shared" else sector_map(request)
    return words | asdict(seen) | {"numbers": f"{maker(request)}: {seen.numbers}"}


def _heats(trace: TraceData) -> list[dict[str, Any]]:
    """Return the heat maps of the loads and the stores of every array; leave out empty ones."""
    found = []
    for heat in trace.heat:
        for operation in ("ld", "st"):
            # Most arrays are only loaded or only stored.
            if heat.counted(stores=operation == "st").any():
                seen = heat_grid(heat, operation, blocks=trace.blocks)
                # JSON has no NaN, and three digits are more than a colour shows.
                cells = [[None if isnan(cell) else float(f"{cell:.3g}") for cell in row] for row in seen.cells]
                words = {"numbers": seen.numbers, "binning": seen.binning}  # properties, which `asdict` leaves out
                found.append(asdict(seen) | words | {"cells": cells})
    return found


def _tree(trace: TraceData) -> dict[str, Any] | None:
    """Return how values went from thread to thread in the first block: at most MOST_ARROWS arrows, the earliest."""
    if not trace.flows.flows:
        return None
    seen = tree(trace.flows)
    # By time, so that what is left out is the end of the kernel and not a part of every step.
    shown = sorted(seen.arrows, key=lambda arrow: (arrow.end, arrow.start))[:MOST_ARROWS]
    first = f"; drawn are the first {len(shown):,} of {len(seen.arrows):,} arrows"
    # The picture ends with the last arrow that is drawn: barriers after it would stand in empty space.
    last = max(arrow.end for arrow in shown)
    return {
        "arrows": shown,
        "barriers": [step for step in seen.barriers if step <= last],
        "steps": [seen.steps.start, last + 1],
        "threads": len(seen.threads),  # the page draws all of the block, so no first one is needed
        "subject": f"{trace.kernel}, {count(len(seen.threads), 'thread')}",
        "numbers": seen.numbers + (first if len(shown) < len(seen.arrows) else ""),
    }
