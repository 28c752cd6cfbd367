"""The solution's own process: load the student's file, and launch its kernels as the grader asks.

The grader (`process`) starts this process, sends inputs and compares the results, so this process holds no right
answers. It does hold the simulator's observations, and `rules` keeps a file from changing them. A timer stops a launch
that takes too long, at its current line. Drawing a picture does not count as the solution's time.
"""

import gc
import io
import linecache
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from normlab.course import wall, wire
from normlab.course.accesses import accesses
from normlab.course.costs import costs
from normlab.course.writers import last_writer
from normlab.engine.compile.front_end import refusal
from normlab.sim import Trace, sanitize, trace
from normlab.sim.machine.launch import Launch
from normlab.stages import row  # noqa: F401  imports what exercises import, before any process is forked

COMPILING = 20.0  # processor seconds in which Numba compiles a solution; 0.1 to 1.2, measured
MOST_BLOCKS = 2048  # that a launch may have whose size the student chooses
MOST_FILES = 1 << 16  # numbers of files that are looked at when all are closed
PRINTED = 2000  # characters of a kernel's printed output that are kept


class TimeUpError(BaseException):
    """Raised when the processor time is up; a BaseException, which no `except Exception` of the simulator catches."""


class Printed(io.StringIO):
    """Keeps the first PRINTED characters that are written, so that a kernel may print however much it likes."""

    def write(self, text: str) -> int:
        """Keep as much of a text as there is space for, and report all of it as written."""
        super().write(text[: max(0, PRINTED - self.tell())])
        return len(text)


def serve(connection: Connection, seconds: float, altogether: float, memory: int) -> None:
    """Answer requests until the grader hangs up.

    A request may take `seconds` of processor time, and all requests together `altogether`. The process
    may allocate `memory` more bytes than it has now.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader handles Ctrl-C
    _silence()
    _close_all_but(connection.fileno())
    _limit_memory(memory)
    gc.freeze()  # imported modules are never garbage, and collecting them took 0.1 s in every process
    gc.set_threshold(50_000, 20, 100)  # a compilation makes millions of objects; a tenth of its time was collecting
    walled = wall.build()
    names: dict[str, Any] = {}
    file = ""
    ours = 0.0  # processor seconds in which none of the student's code ran: compiling and drawing
    try:
        while True:
            header, blobs = wire.unpack(connection.recv_bytes())
            file = header.get("file", file)
            printed, compiles = Printed(), header.get("watch") == "compile"
            try:
                with redirect_stdout(printed), nullcontext() if compiles else walled():
                    began = time.process_time()
                    left = COMPILING if compiles else min(seconds, max(0.01, altogether - (began - ours)))
                    reply, results, traces = _within(left, partial(_answer, names, header, blobs))
                if "picture" in header:
                    began = time.process_time()
                    results.append(_picture(traces, *header["picture"]))
                if compiles or "picture" in header:
                    ours += time.process_time() - began
            except BaseException as error:
                reply, results = _failure(error, file), []
            reply |= {"nonce": header["nonce"], "printed": _plain(printed.getvalue())}
            connection.send_bytes(wire.pack(reply, results))
    except (EOFError, OSError):  # the grader has closed the connection
        return


def _silence() -> None:
    """Redirect stdin, stdout and stderr to the null device, so that a file's output cannot reach the terminal."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _close_all_but(kept: int) -> None:
    """Close all inherited files except the standard ones and `kept`, on systems whose processes are forked.

    Among them are pipes to the fork server and to multiprocessing's resource tracker. A stray byte would end these.
    """
    if hasattr(os, "fork"):
        os.closerange(3, kept)
        os.closerange(kept + 1, MOST_FILES)


def _limit_memory(more: int) -> None:
    """Limit the process to `more` bytes beyond its present size, on systems that have /proc/self/statm."""
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        import resource

        now = int(statistics.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))


def _within(seconds: float, do: Callable[[], Any]) -> Any:
    """Return the result of `do()`. Raise TimeUpError within it when its processor time is up."""
    if not hasattr(signal, "setitimer"):
        return do()  # only the grader's patience limits the time then

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeUpError

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        return do()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _failure(error: BaseException, file: str) -> dict[str, Any]:
    """Return an exception as a reply to the grader: its kind, text, notes and the line of the student's file."""
    # In a loop that the vectorised engine runs, the error has the kernel's lines, the innermost first.
    line = next((line for where, line in getattr(error, "kernel_lines", ()) if where == file), None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == file:
        line = error.lineno
    kinds = {TimeUpError: "time", MemoryError: "memory", SyntaxError: "syntax", SystemExit: "exit"}
    kind = next((kind for base, kind in kinds.items() if isinstance(error, base)), "exception")
    text = _plain(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    notes = [note for note in getattr(error, "__notes__", []) if "\n" not in note]  # longer notes are reports
    return {"failed": {"kind": kind, "text": text, "line": line, "notes": notes}}


def _plain(text: str) -> str:
    """Return text without addresses, in which runs differ, and with "array" for the simulator's classes of arrays."""
    return re.sub(r"\b(?:normlab\.[\w.]+\.)?[A-Z]\w*Array\b", "array", re.sub(r" at 0x[0-9a-f]+", "", text))


def _answer(
    names: dict[str, Any], header: dict[str, Any], blobs: list[bytes]
) -> tuple[dict[str, Any], list[bytes], list[Trace]]:
    """Load a source, or run launches; return the reply, the arrays' bytes after the launches, and the traces."""
    if "source" in header:
        # findings name the text of lines, and the file may have changed on the disk; str.splitlines would end a line
        # at U+2028 and the like, too, where Python ends none
        lines = io.StringIO(header["source"]).readlines()
        linecache.cache[header["file"]] = len(header["source"]), None, lines, header["file"]
        module = ModuleType("solution")
        names.update(vars(module), __file__=header["file"])
        exec(compile(header["source"], header["file"], "exec", dont_inherit=True), names)
        return {}, [], []
    arrays = wire.rebuilt(header["arrays"], blobs)
    traces: list[Trace] = []
    reply = launch_all(names, header, arrays, traces)
    return reply, [array.tobytes() for array in arrays.values()], traces


def launch_all(
    names: dict[str, Any], header: dict[str, Any], arrays: dict[str, np.ndarray], traces: list[Trace]
) -> dict[str, Any]:
    """Run the launches one after another, watched as the header says; append to `traces`."""
    watch, fresh = header["watch"], set(header["fresh"])
    counts: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []
    writer = None
    for kernel, grid, block, given in header["launches"]:
        grid = _chosen(names, grid) if isinstance(grid, dict) else grid
        grid, block = (tuple(one) if isinstance(one, list) else one for one in (grid, block))
        arguments = [_argument(one, arrays) for one in given]
        garbage = [value for kind, value in given if kind == "array" and value in fresh]
        fresh.difference_update(garbage)
        if kernel not in names:
            raise NameError(f"the file has no kernel {kernel!r}")
        function = names[kernel]
        if watch == "sanitize":
            launch = sanitize(function, uninitialized=[arrays[name] for name in garbage])[grid, block]
            if findings := _findings(launch, arguments):
                return {"findings": findings}
        elif watch == "trace":
            traces.append(trace(function)[grid, block](*arguments))
        elif watch == "accesses":
            seen.append(accesses(function)[grid, block](*arguments))
        elif watch == "costs":
            counts.append(costs(function)[grid, block](*arguments))
        elif watch == "compile":
            if refused := refusal(function, tuple(map(_type_of, arguments))):
                return {"refused": refused._asdict() | {"kernel": kernel}}
        else:
            launch = last_writer(function, arrays[header["array"]], tuple(header["index"]), writer)[grid, block]
            writer = launch(*arguments)
    replies: dict[str, dict[str, Any]] = {
        "sanitize": {"findings": []},
        "writer": {"writer": writer},
        "costs": {"costs": counts},
        "accesses": {"accesses": seen},
        "compile": {"refused": None},
        "trace": {"traces": [one.as_dict() for one in traces]},
    }
    return replies[watch]


def _chosen(names: dict[str, Any], asked: dict[str, Any]) -> int:
    """Return the number of blocks that a function of the file chooses for a launch."""
    function, arguments = asked["function"], asked["arguments"]
    blocks = names[function](*arguments)
    if type(blocks) is not int or not 1 <= blocks <= MOST_BLOCKS:
        told = f"{function}({', '.join(map(str, arguments))})"
        raise ValueError(f"{told} gives {blocks!r}; a launch here has a whole number of blocks, 1 to {MOST_BLOCKS}")
    return blocks


def _findings(launch: Launch, arguments: list[Any]) -> list[dict[str, Any]]:
    """Launch under the sanitizer and return its findings.

    If the launch raises after a finding, the finding is reported, because it is probably the cause.
    """
    try:
        report = launch(*arguments)
    except Exception as error:
        report = getattr(error, "sanitizer_report", None)
        if report is None or not report.findings:
            raise
    return report.as_dict()["findings"]


def _argument(given: list, arrays: dict[str, np.ndarray]) -> Any:
    kind, value = given
    if kind == "array":
        return arrays[value]
    return None if kind == "none" else np.dtype(kind).type(value) if kind != "python" else value


def _type_of(argument: Any) -> Any:
    """Return the type of a launch's argument as `compile_ptx` takes it."""
    if argument is None:
        return None
    return (argument.dtype, argument.ndim) if isinstance(argument, np.ndarray) else np.dtype(type(argument))


def _picture(traces: list[Trace], kind: str, form: str) -> bytes:
    """Return a "png" or "svg": the tree of values passed between threads, or the costliest request to a memory."""
    import matplotlib

    matplotlib.use("Agg")
    if kind == "tree":
        axes = max(traces, key=lambda one: len(one.flows.flows)).draw_tree()
    else:
        space, draw = {"banks": ("shared", Trace.draw_banks), "sectors": ("global", Trace.draw_sectors)}[kind]
        kept = [
            (request.cost, number, request)
            for number, one in enumerate(traces)
            for (_, where, _, _), held in one._kept.items()
            if where == space and (request := held.worst) is not None
        ]
        if not kept:
            raise ValueError(f"the kernel makes no request of {space} memory that could be drawn")
        _, number, request = max(kept, key=lambda one: one[:2])
        axes = draw(traces[number], request)
    stream = io.BytesIO()
    axes.get_figure(root=True).savefig(stream, dpi=110, format=form)  # type: ignore[union-attr]
    return stream.getvalue()
