"""Run an unmodified program that uses `numba.cuda` on a machine without a GPU: `normlab run`.

`program` runs the script. While the script runs, `stand_in` replaces the host side of `numba.cuda`: `decorator` and
`kernel` (`cuda.jit` and launches), `allocate` and `memory` (device arrays), `device` (device, context, streams,
events), `elementwise` (vectorize), `rowwise` (guvectorize). `launcher` sends every launch to the simulator, and
`record` collects the report for the end.
"""

import atexit
import importlib.util
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normlab.run.launcher import Launcher

SIMULATOR_SWITCH = "NUMBA_ENABLE_CUDASIM"

__all__ = ["run_program"]


def run_program(
    script: str,
    arguments: list[str],
    sanitize: bool = False,
    trace: bool = False,
    json_file: Path | None = None,
    check: bool = True,
    strict: bool = False,
    play: Path | None = None,
    module: bool = False,
) -> int:
    """Run `script` as `python script arguments…` would, but with its kernels in the simulator, even if there is a GPU.

    module: `script` is the name of a module, which is run as `python -m script arguments…` would.
    sanitize, trace: watch every launch, and print a report per kernel on stderr when the interpreter exits; also write
    the report to `json_file`, if one is given. check: refuse the kernels that Numba does not compile. strict: stores of
    one value by several threads count as something found, too. play: the page for each traced kernel's first block.

    Return the program's exit code. The caller must exit with it. `numba.cuda` stays replaced until then, for threads
    that are still running and for the program's `atexit` functions. If the sanitizer found something, the process
    exits with 1. Raise OSError if a file cannot be read or written, ModuleNotFoundError if there is no such module.
    """
    if module:
        _find(script)
    else:
        with open(script, "rb"):
            pass
    if json_file is not None:
        json_file.write_text("")  # an error now, not when the program has ended; and no report of an earlier program
    if os.environ.pop(SIMULATOR_SWITCH, "0") != "0":  # Numba reads it when it is imported, here and in child processes
        print(f"normlab run: {SIMULATOR_SWITCH} is ignored: kernels run in normlab's simulator", file=sys.stderr)
    from normlab.run.launcher import Launcher
    from normlab.run.program import execute
    from normlab.run.stand_in import replace_for_good

    launcher = Launcher(sanitize, trace, check, play)
    replace_for_good(lambda: launcher)
    if sanitize or trace:
        atexit.register(_report, launcher, json_file, strict)
    return execute(script, arguments, module)


def _find(module: str) -> None:
    """Raise ModuleNotFoundError unless a module's package is in the current folder or on the path."""
    path = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        # Not the module itself: that would import its package, before `numba.cuda` is replaced.
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    finally:
        sys.path[:] = path


def _report(launcher: "Launcher", json_file: Path | None, strict: bool) -> None:
    """Print the report of a whole program; called after the functions that the program registered with `atexit`."""
    with suppress(AttributeError, OSError, ValueError):  # the program may have closed its output
        sys.stdout.flush()
    print(launcher.report(), file=sys.stderr, flush=True)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(launcher.as_dict(), indent=2), encoding="utf-8")
        except OSError as error:
            print(f"normlab run: cannot write {json_file}: {error.strerror}", file=sys.stderr, flush=True)
    for told in launcher.save_pages():
        print(told, file=sys.stderr, flush=True)
    if launcher.found_something(strict):
        os._exit(1)  # an `atexit` function cannot change the interpreter's exit code in any other way
