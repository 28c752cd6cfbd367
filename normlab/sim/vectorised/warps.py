"""Answer shuffles and votes of many warps at once.

All lanes of a warp that are in a frame stand at the same call. The engine gives up where a warp operation would wait
for lanes that stand elsewhere: the scheduler then finds out whether they ever come.
"""

from typing import Any

import numpy as np

from normlab.sim.language.integers import INTEGER_CASTS
from normlab.sim.machine.shuffles import FULL_MASK, SHUFFLED_TYPES
from normlab.sim.vectorised.arithmetic import truth
from normlab.sim.vectorised.casts import to_integer
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import HOLDERS, Mixed, Vector, kind_of

_int32 = INTEGER_CASTS["int32"]


class Group:
    """The lanes of a frame that stand at a warp operation. `warp`, `lane`: of each lane of the frame."""

    def __init__(self, frame: Frame, mask: Any):
        """Gather the lanes; raises NotVectorisedError unless each warp has all live lanes of the mask here."""
        machine, ids = frame.lanes.machine, frame.lanes.ids
        if type(mask) in (Vector, Mixed):
            mask = _one_mask_for_each_warp(frame, mask)
        else:
            mask = int(mask) & FULL_MASK
        self.warp, self.lane = machine.warps[ids], machine.lanes_in_warp[ids]
        self.mask = mask
        # Whether whole warps are here: only these order their lanes' accesses.
        self.complete = frame.width == machine.alive_count
        if not self.complete or isinstance(mask, np.ndarray) or mask != FULL_MASK:
            self._check(machine, ids)
        # For each lane of the chunk its place in the frame, or -1; None if a lane's number is its place.
        self.slot = None
        if frame.width != machine.size:
            self.slot = np.full(machine.size, -1, np.int64)
            self.slot[ids] = np.arange(frame.width)
        self.ids, self.machine, self._frame = ids, machine, frame

    def _check(self, machine: Any, ids: np.ndarray) -> None:
        """Raise NotVectorisedError unless the lanes here are all live lanes that their masks name."""
        here = np.zeros(machine.warp_count, np.int64)
        # `at` takes every lane. An indexed `|=` would keep one lane of each warp.
        np.bitwise_or.at(here, self.warp, np.int64(1) << self.lane)
        alive = np.zeros(machine.warp_count, np.int64)
        living = np.flatnonzero(machine.alive)
        np.bitwise_or.at(alive, machine.warps[living], np.int64(1) << machine.lanes_in_warp[living])
        # No operation waits for a lane that has returned, whatever its mask says.
        wanted = self.mask & alive[self.warp]
        if (here[self.warp] != wanted).any():
            raise NotVectorisedError("lanes of a warp operation's mask stand elsewhere")
        # A mask may leave out live lanes, which then go on without an order to these.
        self.complete = bool((here[self.warp] == alive[self.warp]).all())

    def done(self, operation: str, sources: np.ndarray | None = None) -> None:
        """Tell the machine that the lanes have met, if these are whole warps: others go on without an order.

        `sources`: for each lane of the frame, the place of the lane whose value it gets by a shuffle.
        """
        # Before the lanes' round changes: the observer notes in which one they have come.
        self.machine.launch.tell("warp_operation", self._frame, operation, sources)
        self.machine.rounds.warp_operation(self.ids)
        if self.complete:
            self.machine.meet("warp", self.ids)

    def sources(self, lane: np.ndarray) -> np.ndarray:
        """Return the places in the frame of the lanes with these numbers in each lane's own warp."""
        # A warp's lanes have numbers in a row: its first one, and `lane` more.
        source = self.ids - self.lane + lane
        inside = (lane >= 0) & (lane < 32) & (source < self.machine.size)
        if not inside.all():
            raise NotVectorisedError("a shuffle reads from a lane that does not exist")
        # After a short last warp the next numbers are lanes of another block.
        if self.machine.ragged and (self.machine.warps[source] != self.warp).any():
            raise NotVectorisedError("a shuffle reads from a lane that does not exist")
        if self.slot is None:
            return source
        places = self.slot[source]
        if (places < 0).any():
            raise NotVectorisedError("a shuffle reads from a lane that takes no part in it")
        return places

    def bits(self, condition: Any) -> np.ndarray:
        """Return for each lane of the frame the lanes of its warp in which a condition holds."""
        found = np.zeros(self.machine.warp_count, np.int64)
        chosen = np.broadcast_to(condition, len(self.ids))
        # Each lane has a bit of its own, so the sum of the bits is their union.
        np.add.at(found, self.warp[chosen], np.int64(1) << self.lane[chosen])
        return found[self.warp]


def _one_mask_for_each_warp(frame: Frame, mask: Any) -> np.ndarray:
    """Return the masks of a frame's lanes; raises NotVectorisedError where the lanes of a warp have several."""
    if type(mask) is Mixed or mask.data.dtype.kind not in "iu":
        raise NotVectorisedError("the lanes give masks of several types")
    masks = mask.data.astype(np.int64) & FULL_MASK
    machine = frame.lanes.machine
    warps = machine.warps[frame.lanes.ids]
    # Some lane's mask stands for its warp: if all others equal it, the warp has one mask.
    first = np.empty(machine.warp_count, np.int64)
    first[warps] = masks
    if (first[warps] != masks).any():
        raise NotVectorisedError("the lanes of a warp give different masks")
    return masks


def shuffle(frame: Frame, name: str, mask: Any, value: Any, by: Any) -> Any:
    """Return what `cuda.<name>(mask, value, by)` gives to each lane."""
    kind = kind_of(value)
    if not issubclass(kind, SHUFFLED_TYPES) or kind is bool:
        raise NotVectorisedError(f"of a shuffle of a {kind.__name__}")
    group = Group(frame, mask)
    amount = (by.data.astype(np.int64) if type(by) is Vector else int(by)) & 31  # the hardware reads 5 bits
    lane = group.lane
    # Beyond lanes 0 and 31 a lane gets its own value. An index or a xor of five bits is a lane.
    if name == "shfl_up_sync":
        source = np.where(lane >= amount, lane - amount, lane)
    elif name == "shfl_down_sync":
        source = np.where(lane + amount < 32, lane + amount, lane)
    elif name == "shfl_xor_sync":
        source = lane ^ amount
    else:
        source = np.broadcast_to(np.asarray(amount, np.int64), lane.shape)
    places = group.sources(source)
    group.done(name, places)
    # Uniform: whichever lane is read, it has given this value.
    if type(value) is not Vector:
        return value
    # A shuffle moves numbers and makes none, so their bounds hold.
    return Vector(kind, value.data.take(places), value.low, value.high)


def vote(frame: Frame, name: str, mask: Any, predicate: Any) -> Any:
    """Return what `all_sync`, `any_sync`, `eq_sync` or `ballot_sync` gives to each lane."""
    group = Group(frame, mask)
    true = group.bits(truth(predicate, frame.width))
    # The lanes that vote: `Group` has refused a frame with lanes outside of the mask.
    here = group.bits(True)
    group.done(name)
    # Numba's ballot is an int32, whose sign bit is lane 31.
    if name == "ballot_sync":
        return to_integer(_int32, Vector(np.int64, true), frame.width)
    result = {"all_sync": true == here, "any_sync": true != 0, "eq_sync": (true == here) | (true == 0)}[name]
    return Vector(bool, result)


def syncwarp(frame: Frame, mask: Any = FULL_MASK) -> None:
    """Let the lanes of the mask meet."""
    Group(frame, mask).done("syncwarp")


def _bits_of(value: Any, width: int) -> np.ndarray:
    """Return the bits that a match compares, as integers: of a float, those of the float64."""
    kind = kind_of(value)
    data = np.broadcast_to(value.data if type(value) is Vector else np.array(value, HOLDERS.get(kind)), width)
    if data.dtype.kind == "f":
        # As bits, because the hardware compares these: a NaN equals itself, and 0.0 is not -0.0. A float64 keeps all
        # float32 apart.
        return data.astype(np.float64).view(np.int64)
    if data.dtype.kind not in "ib":
        raise NotVectorisedError(f"of a match of a {kind.__name__}")
    return data.astype(np.int64)


def match_any(frame: Frame, mask: Any, value: Any) -> Any:
    """Return the lanes of its warp that give the same value as each lane."""
    group = Group(frame, mask)
    _, number = np.unique(_bits_of(value, frame.width), return_inverse=True)
    # Lanes belong together if their warps and their numbers are the same.
    _, together = np.unique(group.warp.astype(np.int64) * frame.width + number, return_inverse=True)
    found = np.zeros(frame.width, np.int64)
    np.bitwise_or.at(found, together, np.int64(1) << group.lane)
    group.done("match_any_sync")
    return to_integer(_int32, Vector(np.int64, found[together]), frame.width)


def match_all(frame: Frame, mask: Any, value: Any) -> Any:
    """Return (the lanes, True) where all lanes of a warp give the same value, else (0, False)."""
    group = Group(frame, mask)
    bits = _bits_of(value, frame.width)
    one = np.empty(group.machine.warp_count, np.int64)
    # Some lane's bits stand for its warp; the vote finds a lane that differs.
    one[group.warp] = bits
    same = ~(group.bits(bits != one[group.warp]) != 0)
    lanes = np.where(same, group.bits(True), 0)
    group.done("match_all_sync")
    return to_integer(_int32, Vector(np.int64, lanes), frame.width), Vector(bool, same)
