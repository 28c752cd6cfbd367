"""What runs a launch: the simulator, or under `--sanitize` and `--trace` those who watch it; and what they report.

The one place that decides it. A watched program runs as it does otherwise: findings are kept for the end.
"""

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
        self.name = f"{launch.source.__name__} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        self.launches = 0
        self.findings: dict[tuple, Any] = {}  # what makes two findings the same → the first
        self.launches_with: Counter[tuple] = Counter()
        self.trace: Any = None  # of the first launch

    def add(self, findings: Iterable[Any]) -> None:
        """Count the findings of one launch; kind, array and lines make two the same, whatever the element."""
        same = {(each.kind, each.array, each.lines, each.benign): each for each in findings}
        self.findings = {**same, **self.findings}
        self.launches_with.update(same.keys())

    def __str__(self) -> str:
        """Print as a paragraph of the report."""
        lines = [f"{self.name}: {plural(self.launches, 'launch', 'launches')}"]
        for key, finding in self.findings.items():
            lines.append(f"in {plural(self.launches_with[key], 'launch', 'launches')}: {finding}")
        if self.trace is not None:
            lines.append(f"the first:\n{self.trace}")
        return indent("\n".join(lines), "  ").strip()


def plural(count: int, one: str, many: str) -> str:
    """Return `count` with its noun."""
    return f"{count or 'no'} {one if count == 1 else many}"


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
        traced = self._trace and record.trace is None
        if traced:
            before = [memory.copy() for memory in arrays_in(launch.values)]
            record.trace = sim.trace(launch.function)[launch.configuration](*launch.values)
        if self._sanitize:
            if traced:  # one launch, watched twice: the second time it finds what the first found
                for memory, content in zip(arrays_in(launch.values), before, strict=True):
                    memory[...] = content
            garbage = [part for memory in launch.fresh for part in unwritten(memory)]
            watched = sim.sanitize(launch.function, uninitialized=garbage)[launch.configuration]
            record.add(watched(*launch.values).findings)
        elif not traced:
            sim.simulate(launch.function)[launch.configuration](*launch.values)

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
