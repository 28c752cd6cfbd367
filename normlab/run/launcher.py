"""Run each launch in the simulator, watched by the sanitizer and the tracer if `--sanitize` and `--trace` ask for it.

Only this file decides that. A watched program runs on after a finding: the report comes at the end.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from normlab import sim
from normlab.run.numba_host import HAS_NUMBA, RefusedError, compiling
from normlab.run.poison import unwritten
from normlab.run.record import Record, plural
from normlab.sim import CompilerError
from normlab.sim.language.variables import Types


class Launch(NamedTuple):
    """A launch with its arguments in device memory."""

    source: FunctionType  # the program's function, which the report names
    function: FunctionType  # the frozen copy, which the simulator runs
    configuration: tuple
    cluster: int  # blocks
    values: list[Any]
    fresh: list[np.ndarray]  # the arrays among the values whose memory was allocated empty
    types: Types  # what the compiler's check told of the kernel's variables


def arrays_in(values: Iterable[Any]) -> Iterator[np.ndarray]:
    """Yield the writable arrays among a launch's values, including arrays in tuples."""
    for value in values:
        if isinstance(value, tuple):
            yield from arrays_in(value)
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            yield value


class Launcher:
    """Runs the launches of one program one after another, even if several threads of the program launch."""

    def __init__(self, sanitize: bool = False, trace: bool = False, check: bool = True, play: Path | None = None):
        """Prepare to run launches, under the sanitizer or the tracer if asked to.

        `check`: refuse what Numba does not compile. `play`: the page that shows each kernel's first block.
        """
        self._sanitize, self._trace, self.checks, self._play = sanitize, trace, check and HAS_NUMBA, play
        self._records: dict[CodeType, Record] = {}
        self._lock = threading.RLock()

    def check(self, function: FunctionType, types: tuple, options: dict[str, Any]) -> Types:
        """Return the types of a kernel's variables; raise `CompilerError` if Numba refuses it for these arguments."""
        if not self.checks:
            return {}
        from normlab.engine.compile.check import check_types

        with self._lock, compiling():
            told = check_types(function, types, options)
        if isinstance(told, CompilerError):
            raise RefusedError(str(told), told.line, told.words) from None
        return told

    def launch(self, launch: Launch) -> None:
        """Run one launch to its end."""
        with self._lock:
            if not (self._sanitize or self._trace):
                self._simulated(launch)
            else:
                self._watch(launch)

    @staticmethod
    def _simulated(launch: Launch) -> None:
        simulated = sim.simulate(launch.function, cluster=launch.cluster).typed(launch.types)
        simulated[launch.configuration](*launch.values)

    def _watch(self, launch: Launch) -> None:
        """Run a launch under the sanitizer, and trace a kernel's first launch, as the program was asked to."""
        record = self._records.setdefault(launch.source.__code__, Record(launch.source))
        record.launches += 1
        traced = self._trace and record.launches == 1
        before = [memory.copy() for memory in arrays_in(launch.values)] if traced and self._sanitize else []
        if traced:
            watched: dict[str, Any] = {"cluster": launch.cluster, "play": None if self._play is None else 0}
            try:
                traced_kernel = sim.trace(launch.function, **watched).typed(launch.types)
                record.first = traced_kernel[launch.configuration](*launch.values)
            except Exception as error:
                record.first = error
                if not self._sanitize:
                    raise
        if self._sanitize:
            # A traced launch runs a second time under the sanitizer, on the same contents of memory. Of a launch that
            # was not traced, `before` is empty.
            for memory, content in zip(arrays_in(launch.values), before, strict=False):
                memory[...] = content
            self._sanitized(launch, record)
        elif not traced:
            self._simulated(launch)

    def _sanitized(self, launch: Launch, record: Record) -> None:
        """Run a launch under the sanitizer, and record its findings even if the launch raises."""
        garbage = [part for memory in launch.fresh for part in unwritten(memory)]
        try:
            watched = sim.sanitize(launch.function, cluster=launch.cluster, uninitialized=garbage).typed(launch.types)
            report = watched[launch.configuration](*launch.values)
        except BaseException as error:
            report = getattr(error, "sanitizer_report", None)
            raise
        finally:
            if report is not None:
                record.add(report.findings, launch.configuration)

    def found_something(self, strict: bool) -> bool:
        """Return whether the sanitizer found anything wrong in any launch; `strict`: benign races count, too."""
        findings = (finding for record in self._records.values() for finding in record.findings.values())
        return any(strict or not finding.benign for finding in findings)

    def report(self) -> str:
        """Return the report for the end of the program, kernel by kernel."""
        launches = sum(record.launches for record in self._records.values())
        found = sum(len(record.findings) for record in self._records.values())
        head = f"normlab run: {plural(len(self._records), 'kernel', 'kernels')}, "
        head += plural(launches, "launch", "launches")
        if self._sanitize:
            head += f", {plural(found, 'finding', 'findings')}"
        return "\n\n".join([head, *map(str, self._records.values())])

    def save_pages(self) -> Iterator[str]:
        """Write the recorded kernels' pages, and yield for each what became of it.

        One page goes to the given file. If there are several, each gets a number and its kernel's name.
        """
        traces = [record.first for record in self._records.values() if isinstance(record.first, sim.Trace)]
        if self._play is None:
            return
        for number, one in enumerate(traces, start=1):
            page = self._play
            if len(traces) > 1:
                page = page.with_name(f"{page.stem}-{number}-{one.kernel}{page.suffix}")
            try:
                yield f"wrote {one.play().save(page)}"
            except (ValueError, OSError) as error:
                yield f"normlab run: {one.kernel} has no page: {error}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can hold."""
        return {"kernels": [record.as_dict() for record in self._records.values()]}
