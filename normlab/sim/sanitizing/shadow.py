"""Shadow memory: who has read, written and updated each element, as far as a later access may race with it.

A `Region` shadows one allocation: all arrays that lie in it, under whatever names and dtypes, share it. It works in
units of bytes that every element is made of; where all arrays have one dtype, a unit is an element.

Shared memory forgets everything at a barrier of its block, and global memory at a grid sync: those order it with all
that follows.
"""

from copy import copy
from math import gcd
from types import CodeType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from normlab.sim.machine.observed import Buffer
from normlab.sim.sanitizing.clocks import Access, Left, ThreadClock, before

THIN = 64  # reads or atomics of one unit, from which on only a few of every instruction are kept
THIN_WRITES = 16  # the same for writes, which every access is held to
ENOUGH = 256  # races of one instruction at one unit, from which on it is not asked about there any more
KEPT = 2  # of these: blocks an instruction, warps a team in a block, lanes a warp
WRITTEN, GARBAGE, UPDATED = 0, 1, 2  # UPDATED: by an atomic, so that it is garbage for other atomics only: one finding

Several = (
    Access | list[Access]
)  # one, as for most units, or more: a list for every unit would keep Python's memory busy
Accesses = dict[int, Several]  # by the address of a unit
NONE: dict = {}  # stays so


class Region:
    """The shadow of one allocation, from `start` on the imagined device."""

    __slots__ = (
        *(
            "atomics",
            "buffer",
            "garbage",
            "left",
            "pending",
            "races",
            "reached",
            "reads",
            "reads_only",
            "settled",
            "shared",
            "start",
            "unit",
        ),
        "writes",
    )

    def __init__(self, start: int, unit: int, shared: bool = True):
        """Have elements of `unit` bytes. `shared`: more than one thread can reach it."""
        self.start, self.unit, self.shared = start, unit, shared
        self.reads_only = shared  # so far: nobody has written, and nothing is garbage
        self.buffer: Buffer | None = None  # the first array here, if it is in shared memory
        self.reached = False  # from another block of the cluster
        # of one thread's own memory, which kernels make all the time, nothing of this is kept
        self.reads: Accesses = {} if shared else NONE
        self.writes: Accesses = {} if shared else NONE
        self.atomics: Accesses = {} if shared else NONE
        self.races: dict[tuple[int, int, int], int] = {} if shared else NONE  # unit and instruction → how many it had
        # Those that had enough: unit → instruction → its code; where two codes have one, the one of the last.
        self.settled: dict[int, dict[int, CodeType]] = {} if shared else NONE
        self.left: dict[int, Left] = {} if shared else NONE  # what atomics pass on at their addresses
        self.garbage: bytearray | None = None  # WRITTEN, GARBAGE or UPDATED for each byte; None: all are written
        self.pending: dict[int, list[tuple[str, Access, Buffer]]] = {} if shared else NONE  # reads of garbage

    def never_written(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> None:
        """Take the elements of an array that begins `offset` bytes inside the region for garbage."""
        assert self.garbage is not None
        flat = np.frombuffer(self.garbage, np.uint8)[offset:]
        as_strided(flat, (*shape, size), (*strides, 1))[...] = GARBAGE

    def written(self, address: int, size: int) -> None:
        """Hear that an element has contents from now on."""
        assert self.garbage is not None
        offset = address - self.start
        self.garbage[offset : offset + size] = bytes(size)

    def forget(self) -> None:
        """Begin anew after a barrier of all threads that can reach the memory."""
        for known in (self.reads, self.writes, self.atomics, self.left, self.races, self.settled):
            known.clear()

    # --- accesses: each returns those before it that it races with, by what they did ---------------------------------

    def read(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Note a read of one unit."""
        if self.settled and self.settled.get(address, NONE).get(access[2]) is access[1]:
            return None
        seen = self.reads.get(address)
        if seen is access:  # nobody has read it since; who has written it since has met this access
            return None
        self.reads[address] = access if seen is None else together(seen, access)
        writes, atomics = self.writes.get(address), self.atomics.get(address)
        if writes is None and atomics is None:
            return None
        return self._unordered(address, access, ("write", writes), ("atomic", atomics))

    def write(self, address: int, access: Access, under_way: Access | None = None) -> list[tuple[str, Access]] | None:
        """Note a write of one unit; of an asynchronous copy, what later accesses are to be held to: see `arrive`."""
        if self.settled and self.settled.get(address, NONE).get(access[2]) is access[1]:
            return None
        writes, reads, atomics = self.writes.get(address), self.reads.get(address), self.atomics.get(address)
        found = None
        if writes is not None or reads is not None or atomics is not None:
            found = self._unordered(address, access, ("write", writes), ("read", reads), ("atomic", atomics))
        self.keep_write(address, access if under_way is None else under_way)
        return found

    def keep_write(self, address: int, access: Access) -> None:
        """Hold later accesses of one unit to a write."""
        writes = self.writes.get(address)
        self.writes[address] = access if writes is None else together(writes, access, THIN_WRITES)

    def arrive(self, address: int, under_way: Access) -> None:
        """Forget a write of one unit that was under way, as the thread has waited for it."""
        writes = self.writes.get(address)
        if writes is under_way:
            del self.writes[address]
        elif isinstance(writes, list):
            writes[:] = [one for one in writes if one is not under_way]

    def atomic(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Note an atomic update of one unit."""
        if self.settled and self.settled.get(address, NONE).get(access[2]) is access[1]:
            return None
        seen = self.atomics.get(address)
        self.atomics[address] = access if seen is None else together(seen, access)
        writes, reads = self.writes.get(address), self.reads.get(address)
        if writes is None and reads is None:
            return None
        return self._unordered(address, access, ("write", writes), ("read", reads))

    def _unordered(
        self, address: int, access: Access, *earlier: tuple[str, Several | None]
    ) -> list[tuple[str, Access]] | None:
        """Return what in `earlier` races with `access`; an instruction with enough of these is settled."""
        found = unordered(access, *earlier)
        if found is not None:
            key = address, id(access[1]), access[2]
            self.races[key] = self.races.get(key, 0) + len(found)
            if self.races[key] >= ENOUGH:
                self.settled.setdefault(address, {})[access[2]] = access[1]
        return found

    # --- what atomics pass on ----------------------------------------------------------------------------------------

    def take(self, address: int, thread: ThreadClock) -> None:
        """Let a thread that reads `address` know what was left there."""
        left = self.left.get(address)
        if left is not None:
            left.take(thread)

    def leave(self, address: int, thread: ThreadClock) -> None:
        """Leave what a thread that writes to `address` has fenced."""
        left = self.left.get(address)
        if left is None:
            left = self.left[address] = Left()
        left.leave(thread)

    # --- units -------------------------------------------------------------------------------------------------------

    def units(self, address: int, size: int) -> range:
        """Return the addresses of the units of an element, after cutting the region smaller if need be."""
        unit = gcd(self.unit, size, address - self.start)
        if unit != self.unit:
            tables: tuple[dict[int, Any], ...] = (self.reads, self.writes, self.atomics, self.pending)
            for table in tables:
                finer = {at + part: copy(of) for at, of in table.items() for part in range(0, self.unit, unit)}
                table.clear()
                table.update(finer)
            self.unit = unit
        return range(address, address + size, unit)


def unordered(access: Access, *earlier: tuple[str, Several | None]) -> list[tuple[str, Access]] | None:
    """Return the accesses in `earlier` that did not happen before `access`, or None."""
    epoch = access[0]
    found = None
    for operation, accesses in earlier:
        if accesses is None:
            continue
        for other in accesses if isinstance(accesses, list) else (accesses,):
            if other[0] is not epoch and not before(other[0], epoch):
                if found is None:
                    found = []
                found.append((operation, other))
    return found


def together(seen: Several, access: Access, thin: int = THIN) -> Several:
    """Return what a unit has `seen` together with one more access, without some if they are many.

    All are kept at first, so that every pair of lines is found, in whatever order threads run. Of the same instruction
    by the same thread the last will do: what is not ordered with an earlier one is not with the last one either.
    Beyond that, knowledge comes in blocks, teams and warps, so two blocks, two warps of each of a block's teams and two
    lanes of each stand for all others: a thread that is not ordered with one that was dropped is not ordered with one
    of them either, as long as they are ordered by barriers and warp operations. Single lanes that signal, each by its
    own fence and atomic, may be just those that were kept, and so may the warps of one team, before they have come to
    its barrier for the first time: then a race with the others is missed.
    """
    accesses = seen if isinstance(seen, list) else [seen]
    last = accesses[-1]
    if last[0].thread is access[0].thread and last[2] == access[2] and last[1] is access[1]:
        accesses[-1] = access
        return accesses if len(accesses) > 1 else access
    accesses.append(access)
    count = len(accesses)
    if count < thin or count & (count - 1):  # at every power of two
        return accesses
    latest = {(one[0].thread, id(one[1]), one[2]): one for one in accesses}
    kept: dict[tuple, dict] = {}
    accesses.clear()
    for (thread, code, instruction), one in latest.items():
        blocks = kept.setdefault((code, instruction), {})
        if thread.block in blocks or len(blocks) < KEPT:
            warps = blocks.setdefault(thread.block, {}).setdefault(thread.team, {})
            if thread.warp in warps or len(warps) < KEPT:
                lanes = warps.setdefault(thread.warp, [])
                if len(lanes) < KEPT:
                    lanes.append(thread.lane)
                    accesses.append(one)
    return accesses
