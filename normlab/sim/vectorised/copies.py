"""Start and end asynchronous copies of all lanes at once: the twins of machine/asynchronous.py.

As there, a copy reads its source at its start and arrives at the `wait_copies` that covers its group.
"""

from typing import Any

import numpy as np

from normlab.sim.machine import asynchronous
from normlab.sim.machine.vector import WIDEST
from normlab.sim.vectorised.accesses import load
from normlab.sim.vectorised.calls import register_lanes
from normlab.sim.vectorised.frames import Frame, Lanes
from normlab.sim.vectorised.memory import Array
from normlab.sim.vectorised.proof import arrived, in_flight
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import Vector
from normlab.sim.vectorised.vectors import places_of, tell_instructions


class Copies:
    """The copies under way of a chunk's lanes.

    `committed`: how many groups each lane has committed. `waiting`: a copy's lanes, the group that each puts it into,
    the target, its places and what to write there.
    """

    def __init__(self, size: int):
        """Start with nothing under way for `size` lanes."""
        self.committed = np.zeros(size, np.int64)
        self.waiting: list[tuple[np.ndarray, np.ndarray, Array, Any, Any]] = []


def _of(frame: Frame) -> Copies:
    machine = frame.lanes.machine
    if machine.copies is None:  # most kernels have none
        machine.copies = Copies(machine.size)
    return machine.copies


def start(frame: Frame, target: Any, target_index: Any, source: Any, source_index: Any, width: Any) -> None:
    """Do `copy_async`."""
    if type(target) is not Array or type(source) is not Array or target.store.space != "shared":
        raise NotVectorisedError("of a copy that is not into shared memory")
    width = int(width)
    size = width * target.dtype.itemsize
    # cp.async moves 4, 8 or 16 bytes; a wider copy is several instructions.
    if (size not in (4, 8) and (size % WIDEST or not size)) or source.store.space != "global":
        raise NotVectorisedError("of a copy of a size or source that no instruction has")
    of_source = size // source.dtype.itemsize
    if size % source.dtype.itemsize:
        raise NotVectorisedError("of a copy of parts of elements")
    copies, ids = _of(frame), frame.lanes.ids
    targets = places_of(frame, target, target_index, width)
    sources = places_of(frame, source, source_index, of_source)
    tell_instructions(frame, source, sources, "ldgsts")
    tell_instructions(frame, target, targets, "ldgsts")
    # Now and not at the wait: what is stored to the source later does not reach the copy.
    read = [load(frame, source, place) for place in sources]
    # The bits travel: the elements of a lane side by side, seen as elements of the target.
    bits = np.empty((frame.width, of_source), source.dtype)
    for column, value in enumerate(read):
        bits[:, column] = value.data if type(value) is Vector else value
    numbers = bits.view(target.dtype)
    for column, to in enumerate(targets):
        places = np.broadcast_to(to, frame.width)
        in_flight(frame.lanes, target.store, places, numbers[:, column])
        # `committed[ids]` is a copy of the numbers, so a later commit moves nothing into another group.
        copies.waiting.append((ids, copies.committed[ids], target, places, numbers[:, column]))


def commit(frame: Frame) -> None:
    """Do `commit_copies`."""
    _of(frame).committed[frame.lanes.ids] += 1


def wait(frame: Frame, pending: Any) -> None:
    """Do `wait_copies`."""
    if type(pending) is Vector or pending < 0:
        raise NotVectorisedError("of a wait for a varying or negative number of copies")
    copies, machine = _of(frame), frame.lanes.machine
    # No group is below -1: the copies of lanes that do not wait here stay under way.
    limit = np.full(machine.size, -1, np.int64)
    limit[frame.lanes.ids] = copies.committed[frame.lanes.ids] - int(pending)
    left = []
    # In the order in which they began, as the scheduler lets each thread's groups arrive.
    for ids, groups, target, places, numbers in copies.waiting:
        arrives = groups < limit[ids]
        for chosen, later in ((arrives, False), (~arrives, True)):
            if not chosen.any():
                continue
            whole = bool(chosen.all())
            part = (ids, groups, target, places, numbers) if whole else (
                *(ids[chosen], groups[chosen], target, places[chosen], numbers[chosen]),
            )  # fmt: skip
            if later:
                left.append(part)
            else:
                _arrive(machine, part)
    # A copy that no wait covers never arrives, as in the scheduler.
    copies.waiting = left


def _arrive(machine: Any, copy: tuple) -> None:
    ids, _, target, places, numbers = copy
    # Logged at the wait, because the memory changes here: a thread that reads it before finds the old number.
    target.store.accesses.written(Lanes(machine, ids), places, numbers)
    target.store.data[places] = numbers
    arrived(target.store, places)


register_lanes(asynchronous.copy_async, start)
register_lanes(asynchronous.commit_copies, commit)
register_lanes(asynchronous.wait_copies, wait)
