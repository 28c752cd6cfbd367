"""`normlab run`: a program that uses `numba.cuda`, unmodified, on a machine without a GPU.

`program` runs the script, `stand_in` replaces the host side of `numba.cuda` while it runs: `kernel` (launches),
`memory` (device arrays), `device` (device, context, streams, events), `elementwise` (vectorize, guvectorize). Every
launch goes through `launcher`, to the simulator.
"""

import os
import sys

SIMULATOR_SWITCH = "NUMBA_ENABLE_CUDASIM"

__all__ = ["run_program"]


def run_program(script: str, arguments: list[str], sanitize: bool = False, trace: bool = False) -> int:
    """Run `script` as `python script arguments…` would, its kernels in the simulator, whether there is a GPU or not.

    sanitize, trace: watch every launch, and report on stderr when the program has ended, kernel by kernel.

    Returns the program's exit code, or 1 if the program succeeded and the sanitizer found something. Raises OSError
    for a script that cannot be read. `numba.cuda` stays replaced until the interpreter exits, so that what the program
    registered with `atexit` finds it too.
    """
    if os.environ.pop(SIMULATOR_SWITCH, "0") != "0":  # Numba reads it when it is imported, here and in child processes
        print(f"normlab run: {SIMULATOR_SWITCH} is ignored: kernels run in normlab's simulator", file=sys.stderr)
    from normlab.run.launcher import Launcher
    from normlab.run.program import execute
    from normlab.run.stand_in import replace_for_good

    launcher = Launcher(sanitize, trace)
    replace_for_good(lambda: launcher)
    code = execute(script, arguments)
    if report := launcher.report():
        print(report, file=sys.stderr)
    return code or int(launcher.found_something)
