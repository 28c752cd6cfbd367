"""Hold the time of one block as plain data: a list of steps, each an instruction of one warp."""

from dataclasses import dataclass, field
from typing import Any

from normlab.sim.language.source import Line
from normlab.sim.tracing.request import Request

Value = int | float | bool | complex | None  # None: the lane has no such variable (any more)


@dataclass(frozen=True)
class Meeting:
    """A barrier or a warp operation that `threads` threads of the block come to before any of them goes on."""

    operation: str
    threads: int


@dataclass(frozen=True)
class Standing:
    """Where a warp is after a step: the line that it ran last, and which of its lanes took part, wait or have returned.

    `meetings`: where the waiting lanes stand, as places in `Recording.meetings`.
    """

    line: Line | None = None  # None: the warp has not begun
    active: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()
    meetings: tuple[int, ...] = ()  # nearly always one; lanes in two branches may wait at two warp operations


@dataclass(frozen=True)
class Step:
    """One statement that some lanes of a warp execute together.

    Attributes:
        warp: the warp's number in its block.
        line: the statement's line.
        lanes: the lanes that take part.
        requests: what they ask of memory, one request for each load, store or atomic.
        meetings: place in `Recording.meetings` → the lanes that arrive at this meeting.
        changes: variable → lane → the value that the variable has afterwards, where it differs from before.
        standing: where every warp of the block is afterwards.
    """

    warp: int
    line: Line
    lanes: tuple[int, ...]
    requests: tuple[Request, ...]
    meetings: dict[int, tuple[int, ...]]
    changes: dict[str, dict[int, Value]]
    standing: tuple[Standing, ...]


@dataclass(frozen=True)
class Recording:
    """The steps of one block of a launch.

    Attributes:
        kernel: the kernel's name; `file` and `first_line`: where it is defined.
        block: the index of the block; `lanes`: how many lanes each of its warps has.
        steps: in the order in which they are played: the warps take turns, one step each.
        meetings: what the steps meet at.
        variables: the names of the recorded variables, in the order of their first values.
        cut: whether the threads went on after what is recorded.
    """

    kernel: str
    file: str
    first_line: int
    block: tuple[int, int, int]
    lanes: tuple[int, ...]
    steps: list[Step] = field(repr=False)
    meetings: list[Meeting] = field(repr=False)
    variables: tuple[str, ...]
    cut: bool  # by the limit of statements (player.py: MOST)

    def values(self, step: int, warp: int) -> dict[str, dict[int, Any]]:
        """Return variable → lane → value of a warp after step number `step`; lanes without a value are left out."""
        # Steps hold changes and not values, so the values are all changes up to here, one over the other.
        found: dict[str, dict[int, Any]] = {name: {} for name in self.variables}
        for one in self.steps[: step + 1]:
            if one.warp == warp:
                for name, values in one.changes.items():
                    found[name] |= values
        # None is the change of a lane whose variable is gone, as when the function that had it has returned.
        return {
            name: {lane: value for lane, value in values.items() if value is not None} for name, values in found.items()
        }
