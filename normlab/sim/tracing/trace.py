"""Run a kernel in the simulator and count its memory requests: `trace` returns a `Trace`, to print, draw and save."""

import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlab.sim.machine.launch import Launch, Launchable, engine_named
from normlab.sim.tracing import tables
from normlab.sim.tracing.comparison import Comparison
from normlab.sim.tracing.counts import METRICS
from normlab.sim.tracing.data import LineCounts, TraceData
from normlab.sim.tracing.play import Latencies, Playback, Recording
from normlab.sim.tracing.play.player import Player
from normlab.sim.tracing.recorder import Recorder
from normlab.sim.tracing.request import Request

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def trace(
    kernel: Any,
    schedule: str | int = "forward",
    keep: Collection[int] | int = (),
    cluster: int = 1,
    check: bool = False,
    play: int | tuple[int, ...] | None = None,
    watch: Collection[str] | str | None = None,
    engine: str = "auto",
) -> Launchable:
    """Return `kernel` as something to launch under observation: `trace(kernel)[grid, block](*arguments)` is a `Trace`.

    The kernel runs as `simulate` runs it, in place on its arguments; `schedule`, `cluster`, `check` and `engine` are
    those of `simulate`. `keep`: one or several line numbers of the kernel's source. The trace keeps every request of
    these lines; of each other line it keeps only the first and the costliest request. `Trace.requests` returns those
    kept.

    `play`: the number or the index of a block. The trace records the block statement by statement, and `Trace.play`
    shows it. `watch`: the names of the variables whose values it records; None: all that are numbers.

    Raises what `simulate` raises; TypeError for a `keep` of other than ints; ValueError for a line number below 1. It
    also raises ValueError, after the launch, for a line that is not in the kernel and at which nothing was counted.
    For a `play` or `watch` that is of another kind it raises TypeError, before the launch, and ValueError for a block
    or a variable that is not there, and for `watch` without `play`, or `play` with the vectorised engine.

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
    # What can be checked without a launch is checked here, so that the error comes before an array is written.
    lines = _line_numbers(keep)
    if watch is not None and play is None:
        raise ValueError("watch chooses the variables of a recording, which play=0 asks for")
    engine_named(engine)
    if play is not None:
        if engine == "vectorised":
            raise ValueError("play records thread by thread, which takes the scheduler, not the vectorised engine")
        # "auto" would try the vectorised engine first, which has no statements of single threads to tell of.
        engine = "scheduler"

    def start(launch: Launch, arguments: tuple) -> Trace:
        recorder = Recorder(lines) if play is None else Player(lines, launch, play, watch)
        launch.run(arguments, recorder, engine)
        # What the log still holds when the launch ends is complete: no thread is between two accesses any more.
        recorder.count()
        # Afterwards, because lines of called functions are known only when they have run.
        _check_kept(lines, launch, recorder)
        return Trace(launch, recorder, recorder.recording(launch) if isinstance(recorder, Player) else None)

    return Launchable("trace", kernel, schedule, cluster, start, check)


def _line_numbers(keep: Any) -> set[int]:
    """Return the line numbers in `keep`. Raises TypeError for a value that is no int, ValueError for one below 1."""
    # What is no int and no collection goes on as one entry, so that the check below names it in its error.
    lines = [keep] if isinstance(keep, int) else list(keep) if isinstance(keep, Iterable) else [keep]
    # An empty string has no entries to refuse, and True is an int to Python.
    if isinstance(keep, str) or not all(isinstance(line, int) and not isinstance(line, bool) for line in lines):
        raise TypeError(f"keep takes line numbers of the kernel's source, an int or several, not {keep!r}")
    if lines and min(lines) < 1:
        raise ValueError(f"keep takes line numbers of the kernel's source, from 1 on, not {min(lines)}")
    return set(lines)


def _check_kept(lines: set[int], launch: Launch, recorder: Recorder) -> None:
    """Raise ValueError for a line that is outside the kernel and at which nothing was counted."""
    code = launch.function.__code__
    last = max(line or 0 for _, _, line in code.co_lines())  # some instructions of the interpreter have no line
    # `keep` has numbers without a file, so a line of that number counts whichever function's file it is in. A line of
    # the kernel itself passes even if nothing happened there, in a branch that no thread took.
    known = {line.number for line in recorder.tally.lines} | {*range(code.co_firstlineno, last + 1)}
    if unknown := sorted(lines - known):
        raise ValueError(
            f"keep={unknown[0]}: kernel {launch.function.__name__!r} has lines {code.co_firstlineno} to {last}, and no "
            f"function that it called did something at a line {unknown[0]}"
        )


class Trace(TraceData):
    """The accesses of a launch, shown as tables, pictures and an HTML page. `TraceData` describes the attributes."""

    def __init__(self, launch: Launch, recorder: Recorder, recording: Recording | None = None):
        """Copy the counts of `recorder` after `launch`, and keep what was recorded to be played."""
        super().__init__(launch, recorder)
        self._recording = recording

    def play(self, latencies: Latencies | None = None) -> Playback:
        """Return the recorded block's time: a notebook shows it as a page with a slider, `save` writes the page.

        `latencies`: in cycles, for the view that says how many warps hide them; None: the defaults of `Latencies`.
        Raises ValueError if the trace has recorded nothing.
        """
        if self._recording is None:
            raise ValueError(f"nothing was recorded to play: trace({self.kernel}, play=0) records block 0")
        # Statements are marked in the source before the launch: without readable source there is no mark, and no step.
        if not self._recording.steps:
            raise ValueError(f"nothing was recorded to play: the source of {self.kernel!r} cannot be read")
        return Playback(self._recording, latencies or Latencies())

    def compare(self, other: "Trace", labels: tuple[str, str] | None = None) -> Comparison:
        """Return the metrics of two traces side by side; the result prints as a table, in a notebook too.

        `labels`: names for this trace and the other one, instead of the names of their kernels. Raises TypeError if
        `other` is no Trace or `labels` are not two strings, ValueError if both labels are the same.
        """
        if not isinstance(other, Trace):
            raise TypeError(f"compare takes another Trace, not {type(other).__name__}")
        return Comparison(self, other, labels)

    def draw_sectors(
        self, line: int | Request, operation: str | None = None, array: str | None = None, ax: "Axes | None" = None
    ) -> "Axes":
        """Draw which bytes of which sectors each lane of one request of global memory accesses.

        `line`: a `Request`, or a line number, which stands for the line's costliest request of global memory.
        `operation`, `array`: choose among the line's requests, as in `requests`, with the same errors. `ax`: the
        matplotlib axes to draw in; None: a new figure. Returns the axes. Raises ValueError for a request of shared
        memory.
        """
        # Here and not at the top, as in the methods below: a trace that is only printed needs no pictures and no page.
        from normlab.sim.tracing.pictures import draw_sectors

        return draw_sectors(self._one(line, operation, array, "global"), ax)

    def draw_banks(
        self, line: int | Request, operation: str | None = None, array: str | None = None, ax: "Axes | None" = None
    ) -> "Axes":
        """Draw which banks each lane of one request of shared memory accesses.

        Arguments as in `draw_sectors`, but a line number stands for the line's costliest request of shared memory.
        Raises ValueError for a request of global memory.
        """
        from normlab.sim.tracing.pictures import draw_banks

        return draw_banks(self._one(line, operation, array, "shared"), ax)

    def draw_tree(
        self,
        steps: range | int | None = None,
        threads: range | int | None = None,
        ax: "Axes | None" = None,
        to: int | None = None,
    ) -> "Axes":
        """Draw which thread of the first block gives a value to which, step by step: for a reduction, its tree.

        `steps`, `threads`: a range of those to show, or an int for the first so many. `to`: a thread; only values that
        are part of what it has in the end are drawn. Raises ValueError if there is nothing to show, TypeError for a
        value that is neither an int nor a range.
        """
        from normlab.sim.tracing.pictures import draw_tree

        return draw_tree(self.flows, self.kernel, steps, threads, ax, to)

    def draw_comparison(
        self, other: "Trace", ax: "Axes | None" = None, labels: tuple[str, str] | None = None
    ) -> "Axes":
        """Draw the metrics of two traces as pairs of bars. `labels` and errors as in `compare`."""
        from normlab.sim.tracing.pictures import draw_comparison

        return draw_comparison(self.compare(other, labels), ax)

    def _one(self, line: int | Request, operation: str | None, array: str | None, space: str) -> Request:
        """Return `line` if it is a request, else the line's costliest request of `space`, or of any if none is."""
        if isinstance(line, Request):
            return line
        found = self.requests(line, operation, array)
        # False sorts before True: a request of the space wins over any other, and of several the costliest. One of
        # another space is returned only if there is no better, and the picture then raises the error that names it.
        return max(found, key=lambda request: (request.space == space, request.cost))

    def __str__(self) -> str:
        """Return the metrics and the lines as tables; if stdout is a terminal, they are no wider than the terminal."""
        return tables.as_text(self, tables.terminal_width(sys.stdout))

    def _repr_html_(self) -> str:
        return tables.as_html(self)

    def save(self, path: str | Path) -> Path:
        """Write one standalone HTML page, and return its path.

        The page shows the kernel's source with counters per line, and maps of the line that its reader chooses.
        """
        from normlab.sim.tracing.report import write

        return write(self, Path(path))


__all__ = ["METRICS", "LineCounts", "Trace", "trace"]
