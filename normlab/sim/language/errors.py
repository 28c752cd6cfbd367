"""Define the simulator's errors, and find the place in the caller's source that they name.

An exception that a kernel raises keeps its own type.
"""

import ast
import linecache
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from normlab.sim.language.source import Line, parsing, position_of

MACHINERY = "normlab.sim"  # frames of the simulator are never the place a reader looks for


# The machine raises these where a GPU would hang or compute garbage without a word.
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


class CompilerError(SimulationError):
    """The compiler refuses the kernel, which could run here; `line`: the line of the source that it refuses.

    `words`: the compiler's own.
    """

    def __init__(self, message: str, line: Line, words: str = ""):
        """Say why, and where."""
        super().__init__(message)
        self.line, self.words = line, words


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from `frame` outwards, that is not the simulator's own."""
    while frame is not None and is_machinery(frame):
        frame = frame.f_back
    return frame


def is_machinery(frame: FrameType) -> bool:
    """Return whether `frame` is the simulator's own."""
    return str(frame.f_globals.get("__name__", "")).startswith(MACHINERY)


def own_lines(traceback: TracebackType | None) -> TracebackType | None:
    """Return `traceback` without the simulator's own frames."""
    if traceback is None:
        return None
    # A traceback cannot be cut in the middle: build a new chain from the innermost frame outwards.
    rest = own_lines(traceback.tb_next)
    if is_machinery(traceback.tb_frame):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def failing_array(error: BaseException) -> tuple[str, Any] | None:
    """Return (source text, array) of the subscript in which a kernel failed, as far as the source tells."""
    traceback = own_lines(error.__traceback__)
    # The innermost frame is the one in which the index was wrong.
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return None
    frame = traceback.tb_frame
    line, last, start, end = position_of(frame.f_code, traceback.tb_lasti)
    # An expression over several lines is not cut out: linecache returns single lines.
    if line is None or line != last:
        return None
    # Column offsets count UTF-8 bytes, not characters: a kernel may name its variables in Greek.
    text = linecache.getline(frame.f_code.co_filename, line or 0).encode()[start:end].decode()
    # A part of a line need not parse by itself: then the error goes without a name.
    with suppress(SyntaxError), parsing:
        for node in ast.walk(ast.parse(text.strip())):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                name = node.value.id
                # The first subscript found is the outermost: of `x[i[j]]`, x. f_locals has closure variables, too.
                return name, frame.f_locals.get(name, frame.f_globals.get(name))
    return None


def place(frame: FrameType | None) -> str:
    """Return `file:line: source text` of the kernel's line that `frame` stands in."""
    # Not the simulator's own line, on which a thread that waits has really stopped.
    frame = calling_frame(frame)
    if frame is None:
        return "an unknown line"
    filename, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(filename, line).strip()
    return f"{filename}:{line}: {text}" if text else f"{filename}:{line}"
