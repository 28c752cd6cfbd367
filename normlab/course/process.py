"""Run a student's file in a separate process, with limits on time and memory.

The grader sends launches and inputs to the process (`worker`), which sends back arrays and observations. Every answer
repeats a nonce that the process could not know before, so a file cannot pass off its output or its exit as an answer.
If the system supports it, processes are forked from a server that has imported everything.
"""

import multiprocessing
import secrets
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from normlab.course import wire, worker
from normlab.course.exercise import Case, Launch

NO_RESULT = "the solution's process sent something that is no result"
# The way a run is watched → the key that its reply must have.
OBSERVED = {"sanitize": "findings", "trace": "traces", "writer": "writer", "busiest": "busiest"}


@dataclass(frozen=True)
class Limits:
    """The limits of a solution. Processor time is limited because it depends little on the machine's other work.

    seconds: processor time per request. altogether: processor time of all requests. patience: seconds of wall-clock
    time that the grader waits for a request, for a solution that sleeps or that no timer can stop. memory: bytes.
    """

    seconds: float = 2.5
    altogether: float = 7.5
    patience: float = 7.5
    memory: int = 1 << 30


class StoppedError(Exception):
    """Raised if a solution does not finish. `kind`: "time", "memory", "syntax", "exit", "ended", "exception"."""

    def __init__(self, kind: str, text: str, line: int | None = None, notes: tuple[str, ...] = ()):
        """Keep the kind, the text, the line of the student's file, and the notes."""
        super().__init__(text)
        self.kind, self.text, self.line, self.notes = kind, text, line, notes


@dataclass(frozen=True)
class Run:
    """The result of a case: its arrays after the launches, and the observations (`worker`)."""

    arrays: dict[str, np.ndarray]
    observed: dict[str, Any]
    picture: bytes | None = None


@cache
def _context() -> BaseContext:
    """Return the way to start processes: forked from a warm server, or spawned if the system has no fork server."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "normlab.course.warm"])  # the server imports these, not this process
    return context


NORMAL = Limits()
STARTING = 60.0  # seconds of wall-clock time for a process to start, before it loads its file
DRAWING = 60.0  # further seconds of wall-clock time to draw a picture: matplotlib's first import lists all fonts


class Solution:
    """The process of one file, as a context manager. It raises StoppedError if the file's code does not finish."""

    def __init__(self, source: str, file: str, limits: Limits = NORMAL):
        """Start the process and load `source`; errors name it `file`."""
        self._patience = limits.patience
        self.printed = ""
        self._here, there = _context().Pipe()
        given = there, limits.seconds, limits.altogether, limits.memory
        self._process = _context().Process(target=worker.serve, args=given, daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        there.close()  # the process has its own copy: the pipe closes when the process ends
        try:
            self._ask({"source": "", "file": file}, [], "being started", STARTING)
            self._ask({"source": source, "file": file}, [], "being loaded", self._patience)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Solution":
        """Return the running process."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """Kill the process, even in the middle of a launch."""
        self._process.kill()
        self._process.join()
        self._here.close()

    def run(self, case: Case, watch: str, picture: str | None = None, **more: Any) -> Run:
        """Run a case's launches under `watch`, one of OBSERVED (`worker`). The case's own arrays stay unchanged.

        picture: the picture to draw from a trace (`Exercise.picture`), or None.
        """
        fresh = [*case.want, *case.scratch]
        arrays = {name: _poisoned(array) if name in fresh else array for name, array in case.arrays.items()}
        header = {
            "watch": watch,
            "fresh": fresh,
            "arrays": wire.described(arrays),
            "launches": [[one.kernel, one.grid, one.block, _arguments(one)] for one in case.launches],
        }
        patience = self._patience
        if picture is not None:
            header["picture"] = picture
            patience += DRAWING
        reply, blobs = self._ask(header | more, [array.tobytes() for array in arrays.values()], "running", patience)
        try:
            results = wire.rebuilt(header["arrays"], blobs[: len(arrays)])
        except ValueError:
            raise StoppedError("ended", NO_RESULT) from None
        if OBSERVED[watch] not in reply:
            raise StoppedError("ended", NO_RESULT)
        return Run(results, reply, blobs[len(arrays)] if len(blobs) > len(arrays) else None)

    def _ask(
        self, header: dict[str, Any], blobs: list[bytes], doing: str, patience: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        nonce = secrets.token_hex(8)
        try:
            self._here.send_bytes(wire.pack(header | {"nonce": nonce}, blobs))
            if not self._here.poll(patience):
                raise StoppedError("time", f"nothing came back within {patience:g} s: is a loop endless?")
            reply, results = wire.unpack(self._here.recv_bytes())
        except (EOFError, OSError):
            raise StoppedError(
                "ended", f"the process ended by itself {self._how()}while {doing}, without a result"
            ) from None
        except ValueError:
            reply, results = {}, []
        if reply.get("nonce") != nonce:
            raise StoppedError("ended", NO_RESULT)
        self.printed = reply.get("printed", "")
        if "failed" in reply:
            raise StoppedError(**reply["failed"])
        return reply, results

    def _how(self) -> str:
        """Return the process's exit code or signal as text, or "" if it has not ended."""
        self._process.join(1)
        code = self._process.exitcode
        if code is None:
            return ""
        return f"(exit code {code}) " if code >= 0 else f"(killed by signal {-code}) "


def _poisoned(array: np.ndarray) -> np.ndarray:
    """Return an array of the same shape and dtype, filled with NaN, so that it cannot be taken for a result."""
    return np.full_like(array, np.nan)


def _arguments(launch: Launch) -> list[tuple[str, Any]]:
    """Return a launch's arguments in a form that JSON can hold."""
    told: list[tuple[str, Any]] = []
    for one in launch.arguments:
        if isinstance(one, str):
            told.append(("array", one))
        elif isinstance(one, np.generic):
            told.append((str(one.dtype), one.item()))
        else:
            told.append(("none" if one is None else "python", one))
    return told
