"""Hold a trace as plain data: the accesses of a launch, counted per launch and per source line.

`trace.py` shows the data as tables, pictures and a report.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from normlab.sim.language.source import NO_SOURCE, Line
from normlab.sim.machine.launch import Launch
from normlab.sim.tracing.counts import Counts, number, shown
from normlab.sim.tracing.heat import Heat
from normlab.sim.tracing.recorder import Recorder
from normlab.sim.tracing.request import OPERATIONS, Request


@dataclass(frozen=True)
class LineCounts:
    """The metrics of one source line."""

    line: Line
    metrics: dict[str, float]

    def __repr__(self) -> str:
        """Return the line, and its metrics that are not 0 under their short titles."""
        # Most of a line's 28 metrics are 0.
        told = [f"{shown(name)} {number(value)}" for name, value in self.metrics.items() if value]
        return f"<line {self.line.number}: {self.line.text or NO_SOURCE} ({', '.join(told)})>"


class TraceData:
    """The accesses of a launch to memory, and the meetings of its threads.

    Attributes:
        kernel: the kernel's name. `grid`, `block`: (x, y, z). `cluster`: blocks of a thread-block cluster.
        metrics: Nsight Compute's name of a metric → its value; `METRICS` says what each counts.
        counts: what the metrics are made of.
        heat: how often each element of each array was loaded and stored.
        flows: which thread of the first block gave a value to which.
    """

    def __init__(self, launch: Launch, recorder: Recorder):
        """Copy the counts of `recorder` after `launch`."""
        self.kernel, self.file = launch.function.__name__, launch.function.__code__.co_filename
        self.first_line = launch.function.__code__.co_firstlineno
        self.grid, self.block, self.cluster = tuple(launch.grid), tuple(launch.block), launch.cluster
        self.heat: list[Heat] = list(recorder.heat.values())  # in the order in which the kernel meets the arrays
        self.flows = recorder.flows
        # A trace is kept for long: without this it would keep every thread of the first block, with its frames.
        self.flows.end()
        self._kept = recorder.tally.kept
        self._lines = recorder.tally.lines
        total = Counts()
        for counts in recorder.tally.lines.values():
            total.add(counts)
        # Over allocations and not over lines: a byte that two lines load counts once.
        for touched in recorder.tally.touched.values():
            total.unique.ld += touched.count("ld")
            total.unique.st += touched.count("st")
        self.counts, self.metrics = total, total.metrics()

    @property
    def blocks(self) -> int:
        """Return the number of blocks of the grid."""
        return prod(self.grid)

    def by_line(self) -> list[LineCounts]:
        """Return the metrics of every line that accessed memory or synchronised, those of the kernel's file first."""
        # Without unique bytes: they are counted for the whole launch, because two lines may touch the same byte.
        return [
            LineCounts(line, {name: value for name, value in counts.metrics().items() if "unique" not in name})
            for line, counts in sorted(self._lines.items(), key=lambda item: self._place(item[0]))
        ]

    def _place(self, line: Line) -> tuple[bool, str, int]:
        """Return the key that lines are sorted by."""
        # False sorts before True, so the kernel's own file comes first.
        return line.file != self.file, line.file, line.number

    def requests(
        self, line: int, operation: str | None = None, array: str | None = None, file: str | None = None
    ) -> list[Request]:
        """Return the requests kept of a line: all if it was named in `keep`, else the first and the costliest.

        `operation`: "ld", "st", "atom", or "ldgsts" for an asynchronous copy, which is a request of both its arrays;
        `array`: its name in the kernel; `file`: if several files have such a line.
        Raises ValueError when nothing was kept of such requests, saying what there is, and for another operation;
        TypeError for a line that is no int.
        """
        # bool is a subclass of int in Python: True would pass for line 1.
        if isinstance(line, bool) or not isinstance(line, int):
            raise TypeError(f"line is the number of a line of the kernel's source, an int, not {line!r}")
        if operation is not None and operation not in OPERATIONS:
            raise ValueError(f'operation is "ld", "st", "atom", "ldgsts" or None for any, not {operation!r}')
        found: list[Request] = []
        for (where, _, made, name), kept in self._kept.items():
            wanted = where.number == line and operation in (None, made) and array in (None, name)
            if wanted and (file is None or where.file.endswith(file)) and kept.first and kept.worst:
                # `all` is None, or the list of every request of a line that `keep` names; the first may be the
                # costliest, too.
                found += kept.all or ([kept.first] if kept.first is kept.worst else [kept.first, kept.worst])
        if not found:
            # The usual reason is a number that is off by a line, so the error lists the lines that made requests.
            asked = " ".join(f"{word} {value!r}" for word, value in (("of", array), ("by", operation)) if value)
            raise ValueError(
                f"line {line} of kernel {self.kernel!r} made no memory request {asked}".rstrip()
                + f"; these lines did:\n{self._lines_with_requests()}"
            )
        return found

    def request(self, line: int, operation: str | None = None, array: str | None = None) -> Request:
        """Return the costliest request of a line; arguments and errors as those of `requests`."""
        return max(self.requests(line, operation, array), key=lambda request: request.cost)

    def _lines_with_requests(self) -> str:
        rows = sorted({(line.file, line.number, made, name, line.text) for line, _, made, name in self._kept})
        return "\n".join(f"  {number}: {text}  ({made} {name})" for _, number, made, name, text in rows)

    def array(self, name: str) -> Heat:
        """Return the access counts of the array that the kernel calls `name`; raises ValueError if there is none."""
        # The first array of the name: shared memory of other blocks (space "dshared") has the name of the block's own,
        # and is met later.
        for heat in self.heat:
            if heat.name == name:
                return heat
        names = ", ".join(sorted({repr(heat.name) for heat in self.heat}))
        raise ValueError(f"kernel {self.kernel!r} has no array {name!r}; it has {names or 'none'}")

    def as_dict(self) -> dict[str, Any]:
        """Return kernel, launch, metrics and lines as JSON can hold them."""
        return {
            "kernel": self.kernel,
            "grid": self.grid,
            "block": self.block,
            "cluster": self.cluster,
            "metrics": self.metrics,
            "lines": [
                {"file": row.line.file, "line": row.line.number, "text": row.line.text, "metrics": row.metrics}
                for row in self.by_line()
            ],
        }

    def __repr__(self) -> str:
        """Return the kernel's name and its launch configuration."""
        return f"<Trace of {self.kernel}[{self.grid}, {self.block}]>"
