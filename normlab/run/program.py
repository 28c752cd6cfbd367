"""Run a script as `python script.py` does, or a module as `python -m module` does: as `__main__`, with its arguments.

An exception of the script is printed without the frames of `normlab.run` and of the simulator. It sets the exit code.
"""

import builtins
import os
import runpy
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType

from normlab.sim import CompilerError

MACHINERY = (str(Path(__file__).parent), str(Path(__file__).parent.parent / "sim"), "<frozen runpy>", runpy.__file__)


def execute(script: str, arguments: list[str], module: bool = False) -> int:
    """Run `script` to its end and return the exit code that `python script` would have. module: `python -m script`.

    The arguments, the path and `__main__` stay the script's, for its threads and its `atexit` functions. Of a module
    `__main__` does not stay: runpy takes it back.
    """
    sys.argv = [script, *arguments]
    # first on the path: the script's folder, or for a module the current one
    sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.realpath(script))
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            _run_file(script)
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as error:
        _show(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run_file(script: str) -> None:
    main = ModuleType("__main__")
    main.__dict__.update(__file__=os.path.abspath(script), __builtins__=builtins)
    sys.modules["__main__"] = main
    exec(compile(Path(script).read_bytes(), os.path.abspath(script), "exec", dont_inherit=True), main.__dict__)


def _exit_code(stop: SystemExit) -> int:
    """Return the exit code that the shell gets from `sys.exit(code)`."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF  # all that a shell gets
    print(stop.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Print an exception that the program did not catch, through the program's own hook if it has one."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = _own_frames(link.__traceback__)
            if isinstance(link, CompilerError):
                link.words = ""  # the compiler's own words, which str(link) would append to the sentence
            chain += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]  # the last: of a group
    sys.excepthook(type(error), error, error.__traceback__)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback with the program's frames only."""
    kept = None
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        if not frame.f_code.co_filename.startswith(MACHINERY):
            kept = TracebackType(kept, frame, frame.f_lasti, line)
    return kept
