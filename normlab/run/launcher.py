"""What runs a launch: the simulator, or under `--sanitize` and `--trace` those who watch it; and what they report.

The one place that decides it. A watched program runs as it does otherwise: findings are kept for the end.
"""

import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from normlab import sim
from normlab.run.poison import unwritten
from normlab.run.record import Record, plural


class Launch(NamedTuple):
    """A launch with its arguments in device memory."""

    source: FunctionType  # the program's function, which the report names
    function: FunctionType  # what runs
    configuration: tuple
    values: list[Any]
    fresh: list[np.ndarray]  # of the values, those that were allocated empty


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
        record = self._records.setdefault(launch.source.__code__, Record(launch.source))
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
                record.add(report.findings, launch.configuration)

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

    def as_dict(self) -> dict[str, Any]:
        """Return the same as what JSON has."""
        return {"kernels": [record.as_dict() for record in self._records.values()]}
