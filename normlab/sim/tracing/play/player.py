"""Define the observer of `trace(kernel, play=…)`: it counts as a `Recorder` does, and follows one block's threads."""

import sys
from ast import NodeTransformer
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from math import prod
from types import CodeType, FunctionType
from typing import Any

from normlab.sim.language.paths import PathMarks
from normlab.sim.language.rewrite import names_of, python_function
from normlab.sim.language.steps import STEP, StepMarks
from normlab.sim.machine.launch import Launch
from normlab.sim.machine.observed import ObservedArray, offset_of
from normlab.sim.machine.threads import Dim3
from normlab.sim.tracing.play.data import Meeting, Recording
from normlab.sim.tracing.play.replay import replay
from normlab.sim.tracing.play.track import Track, marked_frame
from normlab.sim.tracing.recorder import Recorder
from normlab.sim.tracing.sites import Sites

MOST = 1 << 19  # statements of all threads together: with them a recording takes some 300 MB while it is made


class Player(Recorder):
    """Counts the requests of a launch, and records every statement of the threads of one block."""

    # StepMarks first, so that it marks the kernel's own statements.
    source_marks: tuple[type[NodeTransformer], ...] = StepMarks, PathMarks

    def __init__(self, keep: Collection[int], launch: Launch, play: Any, watch: Any):
        """Record the block `play` of `launch`, and the variables `watch`, or all if it is None.

        Raises TypeError for what is neither a block nor names, ValueError for a block or a variable that is not there.
        """
        super().__init__(keep)
        self.index = block_index(play, launch.grid)
        self.watch = None if watch is None else variables(watch, launch.function)
        self.block: Any = None  # from its beginning on
        self.tracks: dict[Any, Track] = {}  # by thread
        self.meetings: list[Meeting] = []

    def marks(self, in_kernel: bool) -> dict[str, Any]:
        """Return the functions that the kernel's code calls; STEP is called before every statement."""
        return {**super().marks(in_kernel), STEP: self._step}

    def _step(self, place: int, depth: int, sets: tuple[str, ...] | None) -> bool:
        # Only threads of the chosen block have a track. The marks are in the kernel's source, so all threads call this.
        track = self.tracks.get(self.cuda.current)
        if track is not None and not track.cut:
            track.step(sys._getframe(1), place, depth, sets)
        # For `while STEP(…) and test` (language/steps.py).
        return True

    def _recording(self) -> Callable[..., int]:
        """Return the function that logs every access, and notes those of the block in its thread's track."""
        log, tracks, cuda = super()._recording(), self.tracks, self.cuda

        def record(array: ObservedArray, key: Any, sites: Sites, number: int | None = None) -> int:
            # `log` looks for the kernel's frame at a fixed depth first. Here it is one further out, which costs time
            # only: `log` then walks outwards.
            number = log(array, key, sites, number)
            track = tracks.get(cuda.current)
            if track is not None and not track.cut:
                offset = offset_of(array, key)
                frame = marked_frame(sys._getframe(1))
                if offset is not None and frame is not None:  # of a slice `log` records the elements one by one
                    track.here(frame).accesses.append((number, array.address + offset))
            return number

        return record

    def block_begins(self, block: Any) -> None:
        """Give the threads of the chosen block their tracks."""
        super().block_begins(block)
        if tuple(block.index) == self.index:
            self.block = block
            # The same for all threads: the replay ends where the first of them is cut.
            most = MOST // len(block.threads)
            self.tracks.update((thread, Track(self.watch, most)) for thread in block.threads)

    def returned(self, thread: Any) -> None:
        """Note the last values of a thread."""
        super().returned(thread)
        if thread in self.tracks:
            self.tracks[thread].end()

    # --- meetings ----------------------------------------------------------------------------------------------------

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Note a barrier of the block."""
        super().barrier(block, arrived)
        self._meet(arrived)

    def meeting(self, group: list[Any]) -> None:
        """Note a warp operation."""
        super().meeting(group)
        self._meet(group)

    def team_meets(self, number: int, group: list[Any]) -> None:
        """Note a team's barrier."""
        super().team_meets(number, group)
        self._meet(group)

    def cluster_meets(self, blocks: list[Any]) -> None:
        """Note a cluster's barrier, and the threads of the block that wait there."""
        super().cluster_meets(blocks)
        self._meet(thread for block in blocks for thread in block.at_cluster)

    def grid_sync(self, blocks: list[Any]) -> None:
        """Note a grid sync."""
        super().grid_sync(blocks)
        self._meet(thread for block in blocks for thread in block.at_grid_sync)

    def _meet(self, threads: Iterable[Any]) -> None:
        # A cluster's barrier or a grid sync has threads of other blocks, too. They are left out of the count, because
        # the replay waits until so many of its threads have arrived.
        met = [thread for thread in threads if thread in self.tracks]
        for thread in met:
            track, frame = self.tracks[thread], marked_frame(thread.frame)
            if not track.cut and frame is not None:
                track.here(frame).meeting = len(self.meetings)  # the number of the meeting that is appended next
        if met:
            self.meetings.append(Meeting(met[0].operation, len(met)))

    def recording(self, launch: Launch) -> Recording:
        """Return what was recorded, after the launch."""
        code = launch.function.__code__
        warps = [[self.tracks[thread] for thread in warp.threads] for warp in self.block.warps]
        events = (event for track in self.tracks.values() for event in track.events)
        # A dict and not a set, because it keeps the order of the first values.
        names = dict.fromkeys(name for event in events for name in event.changes)
        return Recording(
            launch.function.__name__,
            code.co_filename,
            code.co_firstlineno,
            self.index,
            tuple(map(len, warps)),
            replay(warps, self.meetings, self._sites, self.index),
            self.meetings,
            tuple(names),
            any(track.cut for track in self.tracks.values()),
        )


def block_index(play: Any, grid: Dim3) -> tuple[int, int, int]:
    """Return the index of the block that `play` names by its number, or by one to three coordinates."""
    # An index has the order of blockIdx, x first. A tuple of one entry counts as a number.
    axes = play if isinstance(play, tuple) else (play,)
    if not all(isinstance(axis, int) and not isinstance(axis, bool) for axis in axes) or not 1 <= len(axes) <= 3:
        raise TypeError(f"play takes a block's number, such as 0, or its index, such as (0, 1), not {play!r}")
    x, y, z = grid
    if len(axes) == 1 and 0 <= axes[0] < prod(grid):
        rest, column = divmod(axes[0], x)
        return (column, rest % y, rest // y)
    # A number outside the grid comes here, too, and is refused below.
    index = (*axes, 0, 0)[:3]
    if len(axes) == 1 or not all(0 <= axis < extent for axis, extent in zip(index, grid, strict=True)):
        raise ValueError(f"play={play!r}: the grid of {x} x {y} x {z} blocks has the blocks 0 to {prod(grid) - 1}")
    return index


def variables(watch: Any, kernel: FunctionType) -> frozenset[str]:
    """Return the names in `watch`; raises for a name that neither the kernel nor a function that it names has."""
    names = (watch,) if isinstance(watch, str) else tuple(watch) if isinstance(watch, Iterable) else (watch,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f'watch takes names of variables, such as ("total",), not {watch!r}')
    known = sorted(_variables_of(kernel, set()))
    # Before the launch: a misspelt name would record nothing, without a word.
    for name in names:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else f"; it has {', '.join(known) or 'none'}"
            raise ValueError(f"watch: kernel {kernel.__name__!r} has no variable {name!r}{hint}")
    return frozenset(names)


def _variables_of(function: FunctionType, seen: set[CodeType]) -> set[str]:
    """Return the variables of a function and of the device functions that it names."""
    code = function.__code__
    # A device function may call itself, or be named by several others.
    if code in seen:
        return set()
    seen.add(code)
    found = {name for name in (*code.co_varnames, *code.co_cellvars)}
    # A kernel that a builder function returns has its device functions in closure cells, other kernels in globals.
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    for value in (*(function.__globals__.get(name) for name in names_of(code)), *cells):
        called = value if isinstance(value, FunctionType) else python_function(value)
        if called is not None:
            found |= _variables_of(called, seen)
    return found
