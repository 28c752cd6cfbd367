"""Run a student's file in a separate process, with limits on time and memory.

The grader sends launches and inputs to the process, which runs `worker.serve`. The process sends back arrays, and what
the simulator observed. Each request has a new random nonce, which the answer must repeat. So the student's file cannot
send an answer that it prepared before the request.

If the system supports it, processes are forked from a server that has imported everything (`warm`), so that not every
process has to import it again.
"""

import multiprocessing
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import normlab
from normlab.course import wire, worker
from normlab.course.exercise import Case, Chosen, Launch

PRELOADED = ["normlab.course.warm"]  # what the fork server imports before it forks
NO_RESULT = "the solution's process sent something that is no result"
# What the worker observes during a run → the key of the observation in its reply.
OBSERVED = {
    "sanitize": "findings",
    "trace": "traces",
    "writer": "writer",
    "costs": "costs",
    "accesses": "accesses",
    "compile": "refused",
}


@dataclass(frozen=True)
class Limits:
    """The limits of a solution's process.

    seconds: processor time per request. altogether: processor time of all requests together. Both limit processor time,
    because it depends little on the machine's other work.
    patience: wall-clock seconds that the grader waits for an answer. It stops a solution that sleeps, which uses no
    processor time, or that the worker's timer cannot stop.
    memory: bytes that the process may allocate beyond its size at the start.
    """

    seconds: float = 2.5
    altogether: float = 7.5
    patience: float = 7.5
    memory: int = 1 << 30


class StoppedError(Exception):
    """Raised if a solution does not finish, or if its process sends no valid answer.

    `kind`: "time", "memory", "syntax", "exit", "exception" or "ended", which is a process that ended or sent no result.
    """

    def __init__(self, kind: str, text: str, line: int | None = None, notes: tuple[str, ...] = ()):
        """Keep the kind, the text, the line of the student's file, and the notes, which are further lines of text."""
        super().__init__(text)
        self.kind, self.text, self.line, self.notes = kind, text, line, notes


@dataclass(frozen=True)
class Run:
    """The result of a case: its arrays after the launches, the worker's observations, and a picture if one was asked.

    `observed` is the worker's whole reply, with the observation under its key in OBSERVED.
    """

    arrays: dict[str, np.ndarray]
    observed: dict[str, Any]
    picture: bytes | None = None


@cache
def _context() -> BaseContext:
    """Return the way to start processes: forked from a server, or spawned if the system has no fork server."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


# Held while a process is started or ended. `_isolated` changes what all threads of the grader share. And
# multiprocessing reads a process's exit code from a pipe: if two threads read at once, one gets a wrong code.
_STARTING_OR_ENDING = threading.RLock()


def prepare_for_a_class() -> None:
    """Let the fork server compile the stages before it forks, if it does not run yet: see `warm_class`."""
    if _context().get_start_method() == "forkserver":
        _context().set_forkserver_preload([*PRELOADED, "normlab.course.warm_class"])


@contextmanager
def _isolated(folder: Path) -> Iterator[None]:
    """Keep new processes from importing the current folder, `folder` and the running program, inside a `with` block.

    A student's file such as numbers.py or copy.py would stand in for Python's own module. normlab's own folder stays.
    multiprocessing would import the program that runs here, and a script that checks a kernel would check it again.
    """
    with _STARTING_OR_ENDING:
        strangers = {Path.cwd(), folder.resolve()} - {Path(normlab.__file__).resolve().parents[1]}
        program = sys.modules["__main__"]
        paths, safe = sys.path[:], os.environ.get("PYTHONSAFEPATH")
        sys.path[:] = [path for path in paths if Path(path or ".").resolve() not in strangers]
        sys.modules["__main__"] = ModuleType("__main__")  # multiprocessing finds no file here that it could import
        os.environ["PYTHONSAFEPATH"] = "1"  # the fork server's Python puts no folder of its own in front
        try:
            yield
        finally:
            sys.modules["__main__"] = program
            sys.path[:] = paths
            if safe is None:
                del os.environ["PYTHONSAFEPATH"]
            else:
                os.environ["PYTHONSAFEPATH"] = safe


NORMAL = Limits()
LARGEST_REPLY = 1 << 30  # bytes
STARTING = 60.0  # wall-clock seconds that a process may take to start, before it loads its file
LONGER = 60.0  # wall-clock seconds in addition, to compile, or to draw: matplotlib's first import lists all fonts


class Solution:
    """The process of one student's file, as a context manager that kills the process at its end.

    `__init__` and `run` raise StoppedError if the file's code does not finish. `printed`: the last request's output.
    """

    def __init__(self, source: str, file: str, limits: Limits = NORMAL):
        """Start the process and load `source`; errors name it `file`.

        An empty source is loaded first, so that a slow start of the process does not count against the student's file.
        """
        self._patience = limits.patience
        self.printed = ""
        self._here, there = _context().Pipe()  # the grader's end, and the process's
        given = there, limits.seconds, limits.altogether, limits.memory
        self._process = _context().Process(target=worker.serve, args=given, daemon=True)  # type: ignore[attr-defined]
        with _isolated(Path(file).parent):
            self._process.start()
        # The process has its own copy of this end. With this copy closed, the process's end closes the pipe.
        there.close()
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
        with _STARTING_OR_ENDING:
            self._process.kill()
            self._process.join()
        self._here.close()

    def run(self, case: Case, watch: str, picture: tuple[str, str] | None = None, **more: Any) -> Run:
        """Run a case's launches in the process. The process gets copies, so the case's own arrays stay unchanged.

        watch: what the worker observes, a key of OBSERVED. picture: the kind of picture to draw from the trace
        ("tree", "banks" or "sectors") and its form ("png" or "svg"), or None. more: further arguments of the watch,
        such as the `array` and the `index` whose "writer" is wanted.
        """
        header, arrays = request(case, watch)
        patience = self._patience
        if picture is not None:
            header["picture"] = picture
        if picture is not None or watch == "compile":
            patience += LONGER
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
        """Send a request, and return the reply's header and its arrays as bytes.

        `doing` says in a message what the process was doing if it ended. `patience`: wall-clock seconds to wait.
        """
        nonce = secrets.token_hex(8)
        try:
            self._here.send_bytes(wire.pack(header | {"nonce": nonce}, blobs))
            if not self._here.poll(patience):
                raise StoppedError("time", f"nothing came back within {patience:g} s: is a loop endless?")
            with self._killed_after(patience):  # the file may have sent a part of a message, and no more
                reply, results = wire.unpack(self._here.recv_bytes(LARGEST_REPLY))
        except (EOFError, OSError):
            if not (how := self._how()):  # the process lives, and what it sent is not a message
                raise StoppedError("ended", NO_RESULT) from None
            raise StoppedError("ended", f"the process ended by itself {how}while {doing}, without a result") from None
        except ValueError:  # not in the form of `wire`; without a nonce the empty reply is refused below
            reply, results = {}, []
        if reply.get("nonce") != nonce:
            raise StoppedError("ended", NO_RESULT)
        self.printed = reply.get("printed", "")
        if "failed" in reply:
            raise StoppedError(**reply["failed"])
        return reply, results

    @contextmanager
    def _killed_after(self, seconds: float) -> Iterator[None]:
        """Kill the process if the `with` block takes longer, so that a read of its messages ends."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _how(self) -> str:
        """Return how the process has ended, its exit code or signal, as text; "" if it has not ended after 1 s."""
        with _STARTING_OR_ENDING:
            self._process.join(1)
            code = self._process.exitcode
        if code is None:
            return ""
        return f"(exit code {code}) " if code >= 0 else f"(killed by signal {-code}) "


def request(case: Case, watch: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what the worker is told of a case's launches, and the arrays that it gets."""
    arrays = {name: _poisoned(array) if name in case.fresh else array for name, array in case.arrays.items()}
    header = {
        "watch": watch,
        "fresh": case.fresh,
        "arrays": wire.described(arrays),
        "launches": [[one.kernel, _grid(one), one.block, _arguments(one)] for one in case.launches],
    }
    return header, arrays


def _poisoned(array: np.ndarray) -> np.ndarray:
    """Return an array of the same shape and dtype, filled with NaN, which no right answer accepts for a number.

    Integers have no NaN: they become the smallest one, which is no count and no index.
    """
    return np.full_like(array, np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).min)


def _grid(launch: Launch) -> Any:
    """Return a launch's grid as JSON can hold it."""
    if isinstance(launch.grid, Chosen):
        return launch.grid._asdict()
    return launch.grid


def _arguments(launch: Launch) -> list[tuple[str, Any]]:
    """Return a launch's arguments as (kind, value) pairs that JSON can hold.

    The kind of an array's name is "array", that of a NumPy scalar its dtype; None is "none", all else "python".
    """
    told: list[tuple[str, Any]] = []
    for one in launch.arguments:
        if isinstance(one, str):
            told.append(("array", one))
        elif isinstance(one, np.generic):
            told.append((str(one.dtype), one.item()))
        else:
            told.append(("none" if one is None else "python", one))
    return told
