"""`normlab run`: a program that uses `numba.cuda`, unmodified, on a machine without a GPU.

`program` runs the script, `stand_in` replaces the host side of `numba.cuda` while it runs: `kernel` (launches),
`memory` (device arrays), `device` (device, context, streams, events), `elementwise` (vectorize, guvectorize). Every
launch goes through `launcher`, to the simulator.
"""

import atexit
import os
import sys
from contextlib import ExitStack

SIMULATOR_SWITCH = "NUMBA_ENABLE_CUDASIM"

__all__ = ["run_program"]


def run_program(script: str, arguments: list[str], sanitize: bool = False, trace: bool = False) -> int:
    """Run `script` as `python script arguments…` would, its kernels in the simulator, whether there is a GPU or not.

    sanitize, trace: watch every launch, and report on stderr when the program has ended, kernel by kernel.

    Returns the program's exit code, or 1 if the program succeeded and the sanitizer found something. Raises OSError
    for a script that cannot be read. `numba.cuda` stays replaced until the interpreter exits, so that what the program
    registered with `atexit` finds it too.
    """
    switch = os.environ.pop(SIMULATOR_SWITCH, None)  # Numba reads it once, when it is imported
    from normlab.run.launcher import Launcher
    from normlab.run.program import execute
    from normlab.run.stand_in import stand_in

    if switch is not None:
        os.environ[SIMULATOR_SWITCH] = switch
        print(f"normlab run: {SIMULATOR_SWITCH} is ignored: kernels run in normlab's simulator", file=sys.stderr)
    launcher = Launcher(sanitize, trace)
    replaced = ExitStack()
    replaced.enter_context(stand_in(launcher))
    atexit.register(replaced.close)
    code = execute(script, arguments)
    if report := launcher.report():
        print(report, file=sys.stderr)
    return code or int(launcher.found_something)
