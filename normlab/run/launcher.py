"""What runs a launch: the simulator, or under `--sanitize` and `--trace` those who watch it; and what they report.

The one place that decides it. A watched program runs as it does otherwise: findings are kept for the end.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import indent
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from normlab import sim
from normlab.run.poison import unwritten
from normlab.sim.tracing.tables import as_text, terminal_width

INDENT = 2  # columns, of what is said of one kernel


class Launch(NamedTuple):
    """A launch with its arguments in device memory."""

    source: FunctionType  # the program's function, which the report names
    function: FunctionType  # what runs
    configuration: tuple
    values: list[Any]
    fresh: list[np.ndarray]  # of the values, those that were allocated empty


class Record:
    """What is known of one kernel at the end."""

    def __init__(self, launch: Launch):
        """Know nothing yet but the kernel's name and its first launch."""
        code = launch.source.__code__
        self.kernel = launch.source.__name__
        self.place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
        self.launches = 0
        self.findings: dict[tuple, Any] = {}  # what makes two findings the same → the first
        self.launches_with: Counter[tuple] = Counter()
        self.first_with: dict[tuple, str] = {}  # → the launch of that first
        self.first: Any = None  # the trace of the first launch, or what it raised

    def add(self, findings: Iterable[Any], launch: Launch) -> None:
        """Count the findings of one launch; kind, array and lines make two the same, whatever the element."""
        same = {(each.kind, each.array, each.lines, each.benign): each for each in findings}
        self.findings = {**same, **self.findings}
        self.launches_with.update(same.keys())
        grid, block, *_ = launch.configuration
        for key in same:
            self.first_with.setdefault(key, f"{ordinal(self.launches)}, {self.kernel}[{grid}, {block}]")

    def __str__(self) -> str:
        """Print as a paragraph of the report."""
        lines = [f"{self.kernel} ({self.place}): {plural(self.launches, 'launch', 'launches')}"]
        for key, finding in self.findings.items():
            count = self.launches_with[key]
            which = f"{'the' if count == 1 else 'first the'} {self.first_with[key]}"
            lines.append(f"in {plural(count, 'launch', 'launches')}, {which}: {finding}")
        if isinstance(self.first, BaseException):
            lines.append(f"the first raised {type(self.first).__name__}: {self.first}; --sanitize says more of such")
        elif self.first is not None:
            text = as_text(self.first, terminal_width(sys.stderr, indented=INDENT))
            lines.append(f"the first:\n{text}")
        return indent("\n".join(lines), " " * INDENT).strip()


def plural(count: int, one: str, many: str) -> str:
    """Return `count` with its noun."""
    return f"{count or 'no'} {one if count == 1 else many}"


def ordinal(number: int) -> str:
    """Return "1st", "2nd", …"""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number // 10 % 10 != 1 else 0, "th")
    return f"{number}{ending}"


def arrays_in(values: Iterable[Any]) -> Iterator[np.ndarray]:
    """Walk through the arrays among a launch's values, those in tuples too; read-only ones left out."""
    for value in values:
        if isinstance(value, tuple):
            yield from arrays_in(value)
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            yield value


class Launcher:
    """Runs the launches of one program, one after another, whichever threads they come from."""

    def __init__(self, sanitize: bool = False, trace: bool = False):
        """Simulate, and watch if asked to."""
        self._sanitize, self._trace = sanitize, trace
        self._records: dict[CodeType, Record] = {}
        self._lock = threading.RLock()

    def launch(self, launch: Launch) -> None:
        """Run one launch to its end."""
        with self._lock:
            if not (self._sanitize or self._trace):
                sim.simulate(launch.function)[launch.configuration](*launch.values)
            else:
                self._watch(launch)

    def _watch(self, launch: Launch) -> None:
        record = self._records.setdefault(launch.source.__code__, Record(launch))
        record.launches += 1
        traced = self._trace and record.launches == 1
        before = [memory.copy() for memory in arrays_in(launch.values)] if traced and self._sanitize else []
        if traced:
            try:
                record.first = sim.trace(launch.function)[launch.configuration](*launch.values)
            except Exception as error:
                record.first = error
                if not self._sanitize:
                    raise
        if self._sanitize:  # a launch that was traced is watched twice: the second time on the same contents
            for memory, content in zip(arrays_in(launch.values), before, strict=False):
                memory[...] = content
            self._sanitized(launch, record)
        elif not traced:
            sim.simulate(launch.function)[launch.configuration](*launch.values)

    def _sanitized(self, launch: Launch, record: Record) -> None:
        garbage = [part for memory in launch.fresh for part in unwritten(memory)]
        try:
            report = sim.sanitize(launch.function, uninitialized=garbage)[launch.configuration](*launch.values)
        except BaseException as error:
            report = getattr(error, "sanitizer_report", None)
            raise
        finally:
            if report is not None:
                record.add(report.findings, launch)

    @property
    def found_something(self) -> bool:
        """Whether the sanitizer found anything in any launch."""
        return any(record.findings for record in self._records.values())

    def report(self) -> str:
        """Return what there is to say at the end, kernel by kernel."""
        launches = sum(record.launches for record in self._records.values())
        found = sum(len(record.findings) for record in self._records.values())
        head = f"normlab run: {plural(len(self._records), 'kernel', 'kernels')}, "
        head += plural(launches, "launch", "launches")
        if self._sanitize:
            head += f", {plural(found, 'finding', 'findings')}"
        return "\n\n".join([head, *map(str, self._records.values())])
