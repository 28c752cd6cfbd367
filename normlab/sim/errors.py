"""The errors of the simulator itself, and how they name a place in the caller's source.

An exception that a kernel raises keeps its own type; the classes here are for what a GPU would answer with a hang or
with garbage. `scheduler.py` and `warp.py` raise them.
"""

import linecache
from types import FrameType

MACHINERY = __package__  # frames of this package are never the place a reader looks for


class SimulationError(RuntimeError):
    """What the simulated GPU could not do: the base class of every error below."""


class DeadlockError(SimulationError):
    """Threads wait for something that will never happen; on a GPU the kernel would hang."""


class BarrierError(SimulationError):
    """Threads of one block wait together at barriers of different kinds (`syncthreads` and `syncthreads_or`, say)."""


class MaskError(SimulationError):
    """A lane calls a warp operation with a mask that leaves the lane itself out."""


class ShuffleError(SimulationError):
    """A shuffle reads from a lane that takes no part in it, which on a GPU gives an undefined value."""


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from `frame` outwards, that is not the simulator's own."""
    while frame is not None and is_machinery(frame):
        frame = frame.f_back
    return frame


def is_machinery(frame: FrameType) -> bool:
    """Return whether `frame` is the simulator's own."""
    return str(frame.f_globals.get("__name__", "")).startswith(MACHINERY)


def place(frame: FrameType | None) -> str:
    """Return `file:line: source text` of the kernel's line that `frame` stands in."""
    frame = calling_frame(frame)
    if frame is None:
        return "an unknown line"
    filename, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(filename, line).strip()
    return f"{filename}:{line}: {text}" if text else f"{filename}:{line}"
