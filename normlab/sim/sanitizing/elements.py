"""Record accesses to single elements in the shadow, and compare each with the earlier accesses of its element."""

import sys
from typing import Any

import numpy as np

from normlab.sim.machine.observed import ObservedArray, ObservedRecord
from normlab.sim.machine.scheduler import TURN
from normlab.sim.protocols import Cuda
from normlab.sim.sanitizing.bounds import wrapped_address_of
from normlab.sim.sanitizing.clocks import NOTHING, Access
from normlab.sim.sanitizing.locks import Locks
from normlab.sim.sanitizing.notes import Notes
from normlab.sim.sanitizing.races import Races
from normlab.sim.sanitizing.shadow import GARBAGE, UPDATED, WRITTEN, Region
from normlab.sim.sanitizing.watch import Watch

PATIENCE = 5040  # repeated reads before other threads run: a multiple of the reads in one turn of any small loop
AGAIN = 60  # the same for a thread that has waited in vain


class Elements:
    """Records reads, writes and atomics of single elements. Arrays use its attributes in their short paths, too."""

    cuda: Cuda  # set when the launch begins

    def __init__(self, watch: Watch, notes: Notes, races: Races, locks: Locks):
        """Report reads of garbage to `notes`, conflicts to `races`, and stores to `locks`, which may free one."""
        self.access, self.locks = watch.access, locks
        self._notes, self._races = notes, races
        self._repeated = 0  # reads that were like the last one at their address

    def note_read(self, array: ObservedArray, address: int, access: Access, polled: bool = False) -> None:
        """Record a read of the element at `address`; `polled`: by `ldcv`, which learns what was left there."""
        region: Region = array.buffer.state
        if region.left:  # before the comparison: a write that was signalled here is no race
            access = self._acquired(region, address, access)
        for unit in (address,) if array.itemsize == region.unit else region.units(address, array.itemsize):
            if region.garbage is not None and region.garbage[unit - region.start] == GARBAGE:
                self._notes.garbage("read", array.buffer, unit, access)
            if region.shared:
                seen = None if polled else region.reads.get(unit)
                earlier = region.poll(unit, access) if polled else region.read(unit, access)
                if earlier is not None:
                    self._races.note("read", array.buffer, unit, access, earlier)
                if seen is access or (type(seen) is list and seen[-1] is access):
                    self.again()

    def again(self) -> None:
        """Count a read that equals the last one; after many of them let other threads run."""
        # A spin loop on a plain load has no atomic by which the scheduler could notice it. Reads that repeat are the
        # sign.
        self._repeated += 1
        if self._repeated >= PATIENCE:
            thread = self.cuda.current
            before = thread.polled.get("variables")
            # The next count of a turn reaches TURN, so that the thread gives way now.
            thread.spins = TURN - 1
            self.cuda.grid_run.turn(thread)
            in_vain = thread.polled["variables"] == before
            # A fixed number, whatever other threads have read: this thread must stop at the same place in its loop.
            self._repeated = PATIENCE - AGAIN if in_vain else 0

    def write_at(self, array: ObservedArray, key: Any, value: Any, address: int, access: Access) -> None:
        """Do `array[key] = value`, where `key` is the element at `address`."""
        region: Region = array.buffer.state
        size = array.itemsize
        region.reads_only = False
        if region.garbage is not None:
            region.written(address, size)
        conflicts: dict[int, list[tuple[str, Access]]] = {}  # unit → the earlier accesses that the write races with
        if region.shared:
            if self.locks.held:
                self.locks.stored(access.epoch.thread, address)
            # As an atomic would. A plain store to a flag races, and is reported; if it left nothing, every access that
            # the flag guards would be reported again.
            if access.epoch.thread.fenced_for_block is not NOTHING:
                region.leave(address, access.epoch.thread)
            for unit in (address,) if size == region.unit else region.units(address, size):
                earlier = region.write(unit, access)
                if earlier is not None:
                    conflicts[unit] = earlier
        doubtful = bool(region.settled) and region.doubtful(address, access)
        if not conflicts and not doubtful:  # the usual case does without the comparison of old and new contents
            array.raw[key] = value
            return
        # By bytes: a NaN that is stored over the same NaN is the same value.
        before = np.asarray(array.raw)[key].tobytes()
        array.raw[key] = value
        same_value = np.asarray(array.raw)[key].tobytes() == before
        if not same_value:
            region.differing.add((address, access.instruction))
            if doubtful:
                conflicts[address] = region.write_after_all(address, access) or []
        for unit, earlier in conflicts.items():
            self._races.note("write", array.buffer, unit, access, earlier, same_value)

    def note_atomic(self, array: ObservedArray, address: int, access: Access) -> None:
        """Record an atomic on the element at `address`; the thread learns what was left, and leaves what it fenced."""
        region: Region = array.buffer.state
        region.reads_only = False
        thread = access.epoch.thread
        # Before anything is left or compared: the atomic reads first, and what it learns may order it.
        if region.left:
            access = self._acquired(region, address, access)
        # Kept for the advice alone: it can then say which atomic lacks a fence before it.
        thread.block.signals[thread, id(access.code), access.instruction] = address, access
        for unit in (address,) if array.itemsize == region.unit else region.units(address, array.itemsize):
            if region.garbage is not None and region.garbage[unit - region.start] != WRITTEN:
                self._notes.garbage("atomic", array.buffer, unit, access)
                region.garbage[unit - region.start] = UPDATED
            if region.shared:
                earlier = region.atomic(unit, access)
                if earlier is not None:
                    self._races.note("atomic", array.buffer, unit, access, earlier)
        if region.shared and thread.fenced_for_block is not NOTHING:
            region.leave(address, thread)

    def whole(self, record: ObservedRecord) -> Any:
        """Return a whole record, and record that its fields are read."""
        array, key = record._array, record._key
        address = wrapped_address_of(array, key)
        assert address is not None, "a record outside of its array is a record of poison (accesses.py)"
        self.note_read(array, address, self.access(sys._getframe(1)))
        return array.raw[key]

    def _acquired(self, region: Region, address: int, access: Access) -> Access:
        """Let the running thread know what was left at `address`; return its access with what it knows now."""
        thread = access.epoch.thread
        region.take(address, thread)
        return access if thread.epoch is access.epoch else access._replace(epoch=thread.now())
