"""Find where a stopped thread stands: the calls that led there, and the line that a report names."""

from types import CodeType, FrameType
from typing import Any

from normlab.sim.language.paths import KERNEL_MARK
from normlab.sim.language.source import NOWHERE, Line, line_of, position_of

Call = tuple[CodeType, int]  # a function, and the offset of an instruction in it
Place = tuple[Call, ...]  # the kernel's instruction, then those of the device functions it is inside of


def place_of(thread: Any) -> Place:
    """Return where a stopped thread stands."""
    frame: FrameType | None = thread.frame
    found = []
    while frame is not None:
        # The innermost frames are the simulator's own: they have stopped the thread.
        if KERNEL_MARK in frame.f_globals:
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    # Outermost first, so that `parting_lines` compares the same level of calls in two places.
    return tuple(reversed(found))


def line_at(place: Place) -> Line | None:
    """Return the innermost line of a place."""
    return line_of(*place[-1]) if place else None


def parting_lines(one: Place, other: Place) -> tuple[Line | None, Line | None]:
    """Return the lines of the outermost calls in which two places differ."""
    # Two threads may stand in one device function, called from two branches: the kernel's lines tell them apart.
    for mine, theirs in zip(one, other, strict=False):
        if not _same_call(mine, theirs):
            return line_of(*mine), line_of(*theirs)
    return line_at(one), line_at(other)


def same(one: Place, other: Place) -> bool:
    """Return whether two places are the same."""
    return len(one) == len(other) and all(map(_same_call, one, other))


def _same_call(one: Call, other: Call) -> bool:
    """Return whether two instructions are the same call of the source."""
    # Code objects by identity, because comparing them is slow.
    if one[0] is not other[0]:
        return False
    # By position in the source, too, because the interpreter may have two instructions for one call: CPython 3.11
    # compiles the condition of a `while` twice.
    return one[1] == other[1] or position_of(*one) == position_of(*other) != NOWHERE
