"""`normlab run`: a program that uses `numba.cuda`, unmodified, on a machine without a GPU.

`program` runs the script, `stand_in` replaces the host side of `numba.cuda` while it runs: `decorator` and `kernel`
(`cuda.jit` and launches), `allocate` and `memory` (device arrays), `device` (device, context, streams, events),
`elementwise` (vectorize), `rowwise` (guvectorize). Every launch goes through `launcher`, to the simulator; `record`
keeps what is reported at the end.
"""

import atexit
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normlab.run.launcher import Launcher

SIMULATOR_SWITCH = "NUMBA_ENABLE_CUDASIM"

__all__ = ["run_program"]


def run_program(
    script: str, arguments: list[str], sanitize: bool = False, trace: bool = False, json_file: Path | None = None
) -> int:
    """Run `script` as `python script arguments…` would, its kernels in the simulator, whether there is a GPU or not.

    sanitize, trace: watch every launch, and report on stderr when the interpreter exits, kernel by kernel; in
    `json_file`, too, if one is given.

    Returns the program's exit code, with which the caller has to exit: `numba.cuda` stays replaced until then, for the
    threads that the program left running and for what it registered with `atexit`. If the sanitizer found something,
    the process exits with 1. Raises OSError for a script that cannot be read.
    """
    with open(script, "rb"):
        pass
    if os.environ.pop(SIMULATOR_SWITCH, "0") != "0":  # Numba reads it when it is imported, here and in child processes
        print(f"normlab run: {SIMULATOR_SWITCH} is ignored: kernels run in normlab's simulator", file=sys.stderr)
    from normlab.run.launcher import Launcher
    from normlab.run.program import execute
    from normlab.run.stand_in import replace_for_good

    launcher = Launcher(sanitize, trace)
    replace_for_good(lambda: launcher)
    if sanitize or trace:
        atexit.register(_report, launcher, json_file)
    return execute(script, arguments)


def _report(launcher: "Launcher", json_file: Path | None) -> None:
    """Print the report of a whole program; called after all that it registered with `atexit` itself."""
    sys.stdout.flush()
    if json_file is not None:
        json_file.write_text(json.dumps(launcher.as_dict(), indent=2), encoding="utf-8")
    print(launcher.report(), file=sys.stderr, flush=True)
    if launcher.found_something:
        os._exit(1)  # the exit code is settled by now, and this alone can change it
