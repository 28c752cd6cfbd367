"""Run a function on many tuples of arguments in processes, none of which outlives the caller.

Ctrl-C stops the processes in the middle of a task; where the parent is killed, a process ends after its task, because
its pipe closes (`concurrent.futures` does neither). Called by `normlab.studies.compare`.
"""

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

Execute = Callable[[Callable[..., Any], list[tuple], Callable[[], None]], list]


class WorkerLostError(Exception):
    """A process was killed, by the system perhaps; the message is one line, for the user."""


@contextmanager
def workers(count: int) -> Iterator[Execute]:
    """Yield `execute(function, tasks, advance)`: results in the tasks' order; it calls `advance` after each task."""
    if count == 1:
        yield _one_after_another
        return
    crew: list[tuple[BaseProcess, Connection]] = []
    try:
        for _ in range(count):
            crew.append(_hire())
        yield partial(_side_by_side, [pipe for _, pipe in crew])
    finally:
        for process, _ in crew:
            process.kill()
        for process, _ in crew:
            process.join()


def _one_after_another(function: Callable[..., Any], tasks: list[tuple], advance: Callable[[], None]) -> list:
    results = []
    for task in tasks:
        results.append(function(*task))
        advance()
    return results


def _side_by_side(
    pipes: list[Connection], function: Callable[..., Any], tasks: list[tuple], advance: Callable[[], None]
) -> list:
    results: list[Any] = [None] * len(tasks)
    waiting = list(reversed(list(enumerate(tasks))))
    idle = list(pipes)
    busy: dict[Connection, int] = {}
    while waiting or busy:
        while idle and waiting:
            number, task = waiting.pop()
            pipe = idle.pop()
            with _alive():
                pipe.send((function, task))
            busy[pipe] = number
        ready = wait(list(busy))
        for pipe in [pipe for pipe in busy if pipe in ready]:
            with _alive():
                result, error = pipe.recv()
            if error is not None:
                raise error
            results[busy.pop(pipe)] = result
            idle.append(pipe)
            advance()
    return results


@contextmanager
def _alive() -> Iterator[None]:
    """Turn the error of a pipe that is closed at the other end into a `WorkerLostError`."""
    try:
        yield
    except (EOFError, OSError):
        raise WorkerLostError("a process that ran kernels was killed; fewer --rows need less memory") from None


def _hire() -> tuple[BaseProcess, Connection]:
    """Start a process that serves one end of a pipe."""
    context = get_context("spawn")  # a forked copy of a process that has threads (the progress bar's) may hang
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    if sys.platform == "win32":
        process.start()
    else:  # Ctrl-C is the parent's to answer; a process inherits what is blocked when it starts
        resource_tracker.ensure_running()  # the first start() would do this, and unblock Ctrl-C
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    there.close()  # the process has it now; its pipe ends when either end does
    return process, here


def _serve(pipe: Connection) -> None:
    """Answer (function, arguments) with (result, None) or (None, exception), until the parent is gone."""
    try:
        while True:
            function, arguments = pipe.recv()
            result = failure = None
            try:
                result = function(*arguments)
            except Exception as error:
                error.add_note(traceback.format_exc())  # a traceback itself does not travel
                failure = error
            pipe.send((result, failure))
    except (EOFError, OSError):
        return
