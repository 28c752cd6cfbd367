"""`trace`: a kernel's memory requests, counted per launch and per source line."""

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlab.sim.language.source import NO_SOURCE, Line
from normlab.sim.machine.launch import Launch, Launchable
from normlab.sim.tracing import tables
from normlab.sim.tracing.comparison import Comparison
from normlab.sim.tracing.counts import METRICS, Counts
from normlab.sim.tracing.heat import Heat
from normlab.sim.tracing.recorder import Recorder
from normlab.sim.tracing.request import OPERATIONS, Request

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def trace(
    kernel: Any, schedule: str | int = "forward", keep: Collection[int] | int = (), cluster: int = 1
) -> Launchable:
    """Return `kernel` as something to launch under observation: `trace(kernel)[grid, block](*arguments)` is a `Trace`.

    The kernel runs as `simulate` runs it, in place on its arguments. `keep`: line numbers of the kernel's source, of
    which every request is kept, to be looked at one by one; of other lines the first and the costliest are.

    Raises what `simulate` raises, TypeError for a `keep` of other than ints, ValueError for lines below 1 and, after
    the launch, for lines that neither the kernel has nor a function that it called.

    >>> import numpy as np
    >>> from numba import cuda
    >>> @cuda.jit
    ... def every_other(x, y):
    ...     i = cuda.grid(1)
    ...     y[i] = x[2 * i]
    >>> counted = trace(every_other)[1, 32](np.zeros(64, np.float32), np.zeros(32, np.float32))
    >>> counted.metrics["l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"]
    8.0
    """
    lines = _line_numbers(keep)

    def start(launch: Launch, arguments: tuple) -> Trace:
        recorder = Recorder(lines)
        launch.run(arguments, recorder)
        recorder.count()
        _check_kept(lines, launch, recorder)
        return Trace(launch, recorder)

    return Launchable("trace", kernel, schedule, cluster, start)


def _line_numbers(keep: Any) -> set[int]:
    """Return the line numbers of `keep`; raises TypeError for what is none, ValueError for one below 1."""
    lines = [keep] if isinstance(keep, int) else list(keep) if isinstance(keep, Iterable) else [keep]
    if isinstance(keep, str) or not all(isinstance(line, int) and not isinstance(line, bool) for line in lines):
        raise TypeError(f"keep takes line numbers of the kernel's source, an int or several, not {keep!r}")
    if lines and min(lines) < 1:
        raise ValueError(f"keep takes line numbers of the kernel's source, from 1 on, not {min(lines)}")
    return set(lines)


def _check_kept(lines: set[int], launch: Launch, recorder: Recorder) -> None:
    """Raise ValueError for a line that is neither the kernel's nor one of a function in which something happened."""
    code = launch.function.__code__
    last = max(line or 0 for _, _, line in code.co_lines())
    known = {line.number for line in recorder.tally.lines} | {*range(code.co_firstlineno, last + 1)}
    if unknown := sorted(lines - known):
        raise ValueError(
            f"keep={unknown[0]}: kernel {launch.function.__name__!r} has lines {code.co_firstlineno} to {last}, and no "
            f"function that it called did something at a line {unknown[0]}"
        )


@dataclass(frozen=True)
class LineCounts:
    """What one source line did."""

    line: Line
    metrics: dict[str, float]

    def __repr__(self) -> str:
        """Name the line and those of its metrics that are not 0, by their short titles."""
        told = [f"{tables.shown(name)} {tables.number(value)}" for name, value in self.metrics.items() if value]
        return f"<line {self.line.number}: {self.line.text or NO_SOURCE} ({', '.join(told)})>"


class Trace:
    """What a launch did to memory, and where its threads met.

    Attributes:
        kernel: the kernel's name. `grid`, `block`: (x, y, z). `cluster`: blocks of a thread-block cluster.
        metrics: Nsight Compute's name of a metric → its value; `METRICS` says what each counts.
        counts: what the metrics are made of.
        heat: how often each element of each array was loaded and stored.
        flows: who gave values to whom in the first block.
    """

    def __init__(self, launch: Launch, recorder: Recorder):
        """Take over what `recorder` has counted in `launch`."""
        self.kernel, self.file = launch.function.__name__, launch.function.__code__.co_filename
        self.first_line = launch.function.__code__.co_firstlineno
        self.grid, self.block, self.cluster = tuple(launch.grid), tuple(launch.block), launch.cluster
        self.heat: list[Heat] = list(recorder.heat.values())
        self.flows = recorder.flows
        self.flows.end()
        self._kept = recorder.tally.kept
        self._lines = recorder.tally.lines
        total = Counts()
        for counts in recorder.tally.lines.values():
            total.add(counts)
        for touched in recorder.tally.touched.values():
            total.unique.ld += touched.count("ld")
            total.unique.st += touched.count("st")
        self.counts, self.metrics = total, total.metrics()

    @property
    def blocks(self) -> int:
        """How many blocks the grid has."""
        return prod(self.grid)

    def by_line(self) -> list[LineCounts]:
        """Return the metrics of every line that touched memory or synchronised: the kernel's file first, then others.

        Unique bytes are known of whole launches only, and left out.
        """
        return [
            LineCounts(line, {name: value for name, value in counts.metrics().items() if "unique" not in name})
            for line, counts in sorted(self._lines.items(), key=lambda item: self._place(item[0]))
        ]

    def _place(self, line: Line) -> tuple[bool, str, int]:
        """Return by what lines are sorted."""
        return line.file != self.file, line.file, line.number

    def compare(self, other: "Trace", labels: tuple[str, str] | None = None) -> Comparison:
        """Return the metrics of two traces side by side; prints as a table, in a notebook too.

        `labels`: what to call this trace and the other, instead of their kernels. Raises TypeError for what is no
        Trace and for labels that are no two strings, ValueError for two labels that are the same.
        """
        if not isinstance(other, Trace):
            raise TypeError(f"compare takes another Trace, not {type(other).__name__}")
        return Comparison(self, other, labels)

    def requests(
        self, line: int, operation: str | None = None, array: str | None = None, file: str | None = None
    ) -> list[Request]:
        """Return the requests kept of a line: all if it was named in `keep`, else the first and the costliest.

        `operation`: "ld", "st", "atom", or "ldgsts" for an asynchronous copy, which is a request of both its arrays;
        `array`: its name in the kernel; `file`: if several files have such a line.
        Raises ValueError when nothing was kept of such requests, saying what there is, and for another operation;
        TypeError for a line that is no int.
        """
        if isinstance(line, bool) or not isinstance(line, int):
            raise TypeError(f"line is the number of a line of the kernel's source, an int, not {line!r}")
        if operation is not None and operation not in OPERATIONS:
            raise ValueError(f'operation is "ld", "st", "atom", "ldgsts" or None for any, not {operation!r}')
        found: list[Request] = []
        for (where, _, made, name), kept in self._kept.items():
            wanted = where.number == line and operation in (None, made) and array in (None, name)
            if wanted and (file is None or where.file.endswith(file)) and kept.first and kept.worst:
                found += kept.all or ([kept.first] if kept.first is kept.worst else [kept.first, kept.worst])
        if not found:
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
        for heat in self.heat:
            if heat.name == name:
                return heat
        names = ", ".join(sorted({repr(heat.name) for heat in self.heat}))
        raise ValueError(f"kernel {self.kernel!r} has no array {name!r}; it has {names or 'none'}")

    def draw_sectors(
        self, line: int | Request, operation: str | None = None, array: str | None = None, ax: "Axes | None" = None
    ) -> "Axes":
        """Draw which bytes of which sectors the lanes want: `line`'s costliest request of global memory, or a request.

        Draws in the matplotlib `ax`, or a figure of its own, and returns the axes. Arguments and errors as those of
        `requests`; ValueError, too, for a request of shared memory.
        """
        from normlab.sim.tracing.pictures import draw_sectors

        return draw_sectors(self._one(line, operation, array, "global"), ax)

    def draw_banks(
        self, line: int | Request, operation: str | None = None, array: str | None = None, ax: "Axes | None" = None
    ) -> "Axes":
        """Draw which banks the lanes want: `line`'s costliest request of shared memory, or a request.

        As `draw_sectors`; ValueError for a request of global memory.
        """
        from normlab.sim.tracing.pictures import draw_banks

        return draw_banks(self._one(line, operation, array, "shared"), ax)

    def draw_tree(
        self, steps: range | int | None = None, threads: range | int | None = None, ax: "Axes | None" = None
    ) -> "Axes":
        """Draw who gives values to whom in the first block, step by step: a reduction's tree.

        `steps`, `threads`: which to show, an int for the first so many. Raises ValueError where there is nothing to
        show, TypeError for what is no int or range.
        """
        from normlab.sim.tracing.pictures import draw_tree

        return draw_tree(self.flows, self.kernel, steps, threads, ax)

    def draw_heat(
        self, array: str, operation: str | None = None, width: int | None = None, ax: "Axes | None" = None
    ) -> "Axes":
        """Draw how often each element of `array`, the kernel's name for it, was loaded ("ld"), stored ("st") or both.

        `width`: elements a row of a 1-D array. Raises ValueError for an unknown array or operation, for an array
        without elements, and for a width of what is not 1-D, TypeError for a width that is no int.
        """
        from normlab.sim.tracing.pictures import draw_heat

        return draw_heat(self.array(array), operation, width, ax, blocks=self.blocks)

    def draw_comparison(
        self, other: "Trace", ax: "Axes | None" = None, labels: tuple[str, str] | None = None
    ) -> "Axes":
        """Draw the metrics of two traces as pairs of bars; `labels` and errors as those of `compare`."""
        from normlab.sim.tracing.pictures import draw_comparison

        return draw_comparison(self.compare(other, labels), ax)

    def _one(self, line: int | Request, operation: str | None, array: str | None, space: str) -> Request:
        """Return `line` if it is a request, else the costliest of that line, of `space` if there are such."""
        if isinstance(line, Request):
            return line
        found = self.requests(line, operation, array)
        return max(found, key=lambda request: (request.space == space, request.cost))

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
        """Name the kernel and its launch."""
        return f"<Trace of {self.kernel}[{self.grid}, {self.block}]>"

    def __str__(self) -> str:
        """Return the metrics and the lines as tables, on a terminal no wider than it is."""
        return tables.as_text(self, tables.terminal_width(sys.stdout))

    def _repr_html_(self) -> str:
        return tables.as_html(self)

    def save(self, path: str | Path) -> Path:
        """Write one standalone HTML page (source, counters, maps of the chosen line) and return its path."""
        from normlab.sim.tracing.report import write

        return write(self, Path(path))


__all__ = ["METRICS", "LineCounts", "Trace", "trace"]
