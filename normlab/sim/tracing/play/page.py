"""Write the page of a `Playback`: its data as short JSON, which page.js plays. The page needs no network.

A list of one value per lane is written as one value if all lanes have the same, as `[first, difference]` if the values
are an arithmetic progression, and else in full. Numbers are rounded to five digits. `page.js` unpacks these lists.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from normlab.sim.language.source import NO_SOURCE, Line, file_name
from normlab.sim.tracing.pictures.words import count
from normlab.sim.tracing.play.data import Recording, Step, Value
from normlab.sim.tracing.play.latency import NAMES, Latency
from normlab.sim.tracing.report.listing import sections
from normlab.sim.tracing.report.template import page_template
from normlab.sim.tracing.request import OPERATIONS, Request

LARGEST = 1 << 53  # JavaScript's numbers are float64, which hold every integer below this
MOST_INSTRUCTIONS = 60  # in the picture of the latency


def page(recording: Recording, latency: Latency) -> str:
    """Return the page's HTML."""
    listed = sections(recording.file, recording.first_line, (step.line for step in recording.steps))
    # Lines of all sections are numbered through, because a step may be in a device function, or in another file.
    rows = {line: row for row, line in enumerate(line for section in listed for line, _ in section.lines)}
    return page_template(Path(__file__).parent).render(
        recording=recording,
        latency=latency,
        sections=listed,
        rows=rows,
        file_name=file_name,
        no_source=NO_SOURCE,
        count=count,
        data=data(recording, rows) | {"latency": _latency(latency)},
    )


def data(recording: Recording, rows: dict[Line, int]) -> dict[str, Any]:
    """Return what page.js plays; `rows`: the number of each line's row in the listing."""
    kinds: dict[tuple, int] = {}  # (is it shared memory?, operation and array in words, bytes) → its index in "kinds"
    # Before the rest, because `_step` fills `kinds`.
    steps = [_step(step, recording, rows, kinds) for step in recording.steps]
    return {
        "lanes": recording.lanes,
        "variables": recording.variables,
        "meetings": [[one.operation, one.threads] for one in recording.meetings],
        "kinds": [list(kind) for kind in kinds],
        "lines": {row: line.number for line, row in rows.items()},
        "steps": steps,
    }


def _step(step: Step, recording: Recording, rows: dict[Line, int], kinds: dict[tuple, int]) -> list[Any]:
    """Return a step as [warp, row, lanes, returned lanes, meetings, changes, requests]."""
    changes = [
        [recording.variables.index(name), mask(values), short([plain(value) for value in values.values()])]
        for name, values in step.changes.items()
    ]
    meetings = [[meeting, mask(lanes)] for meeting, lanes in step.meetings.items()]
    # Of `standing` the page needs this alone: it plays all steps, and finds out itself which lanes wait.
    returned = mask(step.standing[step.warp].returned)
    requests = [_request(request, kinds) for request in step.requests]
    return [step.warp, rows[step.line], mask(step.lanes), returned, meetings, changes, requests]


def _request(request: Request, kinds: dict[tuple, int]) -> list[Any]:
    """Return a request as [kind, lanes, cost, offsets from the beginning of the array's first sector]."""
    shared = request.space == "shared"
    # Sectors begin at multiples of 32 bytes of memory, and an array may begin within one. A shared array begins at
    # bank 0.
    start = request.origin if shared else request.origin // 32 * 32
    kind = int(shared), f"{request.space} {OPERATIONS[request.operation]} of {request.array}", request.size
    place = kinds.setdefault(kind, len(kinds))
    return [place, mask(request.lanes), request.cost, short([address - start for address in request.addresses])]


def mask(lanes: Iterable[int]) -> int:
    """Return lanes as the bits of a number."""
    return sum(1 << lane for lane in lanes)


def plain(value: Value) -> Any:
    """Return a value as JSON holds it and as the page shows it."""
    if isinstance(value, float) and abs(value) < float("inf"):
        rounded = float(f"{value:.5g}")
        # 3 in place of 3.0: JSON is shorter, and JavaScript has one type of numbers.
        return int(rounded) if rounded.is_integer() and abs(rounded) < LARGEST else rounded
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < LARGEST):
        return value
    return str(value)  # inf and nan, complex numbers, integers with more bits than JavaScript's


def short(values: list[Any]) -> Any:
    """Return a list of values in the shortest of the forms above."""
    # With the type, because True == 1 in Python, and the page shows "true" for the one.
    if all(value == values[0] and type(value) is type(values[0]) for value in values):
        return values[0]
    if all(type(value) is int for value in values):
        difference = values[1] - values[0]
        # A list of two entries is a progression only if there are more values than two.
        if len(values) > 2 and all(two - one == difference for one, two in pairwise(values)):
            return [values[0], difference]
    return values


def _latency(latency: Latency) -> dict[str, Any]:
    """Return the picture of the latency: for each number of warps, the cycle of each warp's first instructions."""
    shown = latency.instructions[:MOST_INSTRUCTIONS]
    kinds = list(NAMES)
    return {
        "instructions": [[one.line.number, one.slots, one.wait, kinds.index(one.kind)] for one in shown],
        "kinds": kinds,
        "names": list(NAMES.values()),
        "schedules": [
            {
                "cycles": one.cycles,
                "busy": round(one.busy, 4),
                "starts": [starts[: len(shown)] for starts in one.starts],
            }
            for one in latency.schedules
        ],
    }
