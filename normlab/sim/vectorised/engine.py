"""Run a launch with all threads of many blocks at once, or say why not.

The engine runs on the arguments in place, and keeps a copy of each array before its first store. Whatever it cannot
prove equal to the scheduler makes it undo the stores; the scheduler then runs the launch from the beginning, so errors
come from there, with the thread, the block and the line.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from normlab.sim.machine.threads import Dim3
from normlab.sim.vectorised.machine import Launched, Machine
from normlab.sim.vectorised.refusal import NotVectorisedError, RestartError
from normlab.sim.vectorised.running import bound, invoke

LANES = 1 << 15  # of a chunk, or one block: measured on saxpy, a tiled product and mandelbrot
ATTEMPTS = 40  # an attempt finds one more array whose loads must be recorded

_recorded: dict[int, tuple[FunctionType, set]] = {}  # by kernel: the arrays whose loads had to be recorded before


def attempt(body: FunctionType, arguments: list, cuda: Any, original: FunctionType) -> str | None:
    """Run a launch; return None, or why the scheduler must run it, with all arrays as they were.

    `body`: the rewritten kernel; `original`: its own function, under which the engine remembers what it has learnt.
    """
    _, recorded = _recorded.setdefault(id(original), (original, set()))
    with np.errstate(all="ignore"):
        for _ in range(ATTEMPTS):
            launch = Launched(cuda, cuda.gridDim, cuda.blockDim, recorded)
            try:
                _run_chunks(launch, body, arguments)
                return None
            except RestartError:
                launch.restore()
            except NotVectorisedError as refusal:
                launch.restore()
                where = f"{body.__code__.co_filename}:{refusal.line}: " if refusal.line else ""
                return f"{where}{refusal.reason}"
            except Exception as error:  # whatever the kernel or the engine does wrong, the scheduler says it best
                launch.restore()
                if STRICT:
                    raise
                return f"{type(error).__name__}: {error}"
    return "too many attempts"


STRICT = False  # for tests: an unforeseen error comes out


def _run_chunks(launch: Launched, body: FunctionType, arguments: list) -> None:
    """Run the blocks of a launch, some at a time."""
    grid = launch.grid
    blocks = grid.x * grid.y * grid.z
    together = max(1, LANES // launch.threads)
    parameters = bound(body, [_argument(launch, value, place) for place, value in enumerate(arguments)], {})
    for first in range(0, blocks, together):
        machine = Machine(launch, first, min(together, blocks - first))
        invoke(body, parameters, machine.all_lanes, 0)
        machine.finish()


def _argument(launch: Launched, value: Any, key: Any) -> Any:
    """Return an argument as the kernel sees it."""
    if isinstance(value, np.ndarray):
        return launch.array(value, key)
    if isinstance(value, tuple):
        parts = [_argument(launch, part, (key, place)) for place, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


__all__ = ["Callable", "Dim3", "attempt"]
