"""Keep the reads, writes and atomics of each element that a later access may race with: the shadow memory.

A `Region` is the shadow of one allocation: all arrays in the allocation share it, under whatever names and dtypes. A
region is divided into units of equal size, and every element is made of whole units; if all arrays have one dtype, a
unit is an element.

The shadow of shared memory forgets everything at a barrier of its block, and that of global memory at a grid sync,
because such a barrier orders all earlier accesses before all later ones.
"""

from copy import copy
from math import gcd
from types import CodeType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from normlab.sim.machine.observed import Buffer
from normlab.sim.sanitizing.clocks import Access, Epoch, Left, ThreadClock, before

THIN = 64  # from so many reads or atomics of one unit on, only a few of each instruction are kept
THIN_WRITES = 16  # the same for writes, fewer because every access is compared with all writes kept
ENOUGH = 256  # after so many races of one instruction at one unit, its accesses there are no longer compared
KEPT = 2  # blocks kept per instruction, warps per team of a block, lanes per warp
# UPDATED: garbage that an atomic has updated. Reads of it are not reported, so that the mistake is one finding.
WRITTEN, GARBAGE, UPDATED = 0, 1, 2

# Most units have one access, which is kept without a list: a list per unit would cost time and memory.
Several = Access | list[Access]
Accesses = dict[int, Several]  # by the address of a unit
NONE: dict = {}  # stays empty: it stands for tables that are not kept


class Region:
    """The shadow of one allocation, from `start` on the imagined device."""

    __slots__ = (
        *(
            "atomics",
            "buffer",
            "differing",
            "garbage",
            "left",
            "pending",
            "polls",
            "races",
            "reached",
            "reads",
            "reads_only",
            "settled",
        ),
        *("shared", "start", "unit", "writes"),
    )

    def __init__(self, start: int, unit: int, shared: bool = True):
        """Have elements of `unit` bytes. `shared`: more than one thread can reach it."""
        self.start, self.unit, self.shared = start, unit, shared
        self.reads_only = shared  # so far no thread has written here, and no element is garbage
        self.buffer: Buffer | None = None  # the first array here, if it is in shared memory
        self.reached = False  # whether another block of the cluster has accessed it
        # A thread's own memory needs no tables, and kernels make local arrays all the time.
        self.reads: Accesses = {} if shared else NONE
        self.writes: Accesses = {} if shared else NONE
        self.atomics: Accesses = {} if shared else NONE
        self.polls: Accesses = {} if shared else NONE  # reads by ldcv, which race with writes and not with atomics
        self.races: dict[tuple[int, int, int], int] = {} if shared else NONE  # unit and instruction → how many
        # Those with ENOUGH races: unit → instruction → its code. Of two functions with one number, the last.
        self.settled: dict[int, dict[int, CodeType]] = {} if shared else NONE
        # Units and instructions whose races were of stores that changed the value; all others' are benign so far.
        self.differing: set[tuple[int, int]] = set()
        self.left: dict[int, Left] = {} if shared else NONE  # what atomics pass on at their addresses
        self.garbage: bytearray | None = None  # WRITTEN, GARBAGE or UPDATED for each byte; None: all are written
        self.pending: dict[int, list[tuple[str, Access, Buffer]]] = {} if shared else NONE  # reads of garbage

    def never_written(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> None:
        """Mark the elements of an array that begins `offset` bytes inside the region as garbage."""
        assert self.garbage is not None
        # A view as wide as an element: gaps between the elements of a strided array are not marked.
        flat = np.frombuffer(self.garbage, np.uint8)[offset:]
        as_strided(flat, (*shape, size), (*strides, 1))[...] = GARBAGE

    def written(self, address: int, size: int) -> None:
        """Mark an element as written."""
        assert self.garbage is not None
        offset = address - self.start
        self.garbage[offset : offset + size] = bytes(size)

    def forget(self) -> None:
        """Forget all accesses after a barrier of all threads that can reach the memory."""
        # `garbage` and `pending` stay: a barrier writes nothing, and a read of garbage before it is a mistake still.
        for known in (self.reads, self.writes, self.atomics, self.polls, self.left, self.races, self.settled):
            known.clear()

    # --- accesses: each method returns the earlier accesses that the new one races with, with their operations ------

    def read(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Record a read of one unit."""
        if self.settled and self.settled.get(address, NONE).get(access.instruction) is access.code:
            return None
        seen = self.reads.get(address)
        if seen is access:  # no other read since; a write since then has been compared with this access already
            return None
        self.reads[address] = access if seen is None else together(seen, access)
        writes, atomics = self.writes.get(address), self.atomics.get(address)
        if writes is None and atomics is None:
            return None
        return self._unordered(address, access, ("write", writes), ("atomic", atomics))

    def write(self, address: int, access: Access, under_way: Access | None = None) -> list[tuple[str, Access]] | None:
        """Record a write of one unit. For an asynchronous copy, compare later accesses with `under_way` instead."""
        if self.settled and self.settled.get(address, NONE).get(access.instruction) is access.code:
            return None
        writes, reads, atomics = self.writes.get(address), self.reads.get(address), self.atomics.get(address)
        polls = self.polls.get(address) if self.polls else None
        found = None
        if writes is not None or reads is not None or atomics is not None or polls is not None:
            earlier = ("write", writes), ("read", reads), ("atomic", atomics), ("read", polls)
            found = self._unordered(address, access, *earlier)
        self.keep_write(address, access if under_way is None else under_way)
        return found

    def doubtful(self, address: int, access: Access) -> bool:
        """Return whether a write is no longer compared, and all races of its instruction were of equal values."""
        settled = self.settled.get(address, NONE).get(access.instruction) is access.code
        return settled and (address, access.instruction) not in self.differing

    def write_after_all(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Record one more write of an instruction that is no longer compared."""
        del self.settled[address][access.instruction]
        return self.write(address, access)

    def keep_write(self, address: int, access: Access) -> None:
        """Keep a write of one unit, so that later accesses are compared with it."""
        writes = self.writes.get(address)
        self.writes[address] = access if writes is None else together(writes, access, THIN_WRITES)

    def arrive(self, address: int, under_way: Access) -> None:
        """Forget a write of one unit that was under way, because the thread has waited for the copy."""
        writes = self.writes.get(address)
        if writes is under_way:
            del self.writes[address]
        elif isinstance(writes, list):
            writes[:] = [one for one in writes if one is not under_way]

    def atomic(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Record an atomic update of one unit."""
        if self.settled and self.settled.get(address, NONE).get(access.instruction) is access.code:
            return None
        seen = self.atomics.get(address)
        self.atomics[address] = access if seen is None else together(seen, access)
        writes, reads = self.writes.get(address), self.reads.get(address)
        if writes is None and reads is None:
            return None
        return self._unordered(address, access, ("write", writes), ("read", reads))

    def poll(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Record a read of one unit by `ldcv`, to which only plain writes are a race."""
        seen = self.polls.get(address)
        if seen is not access:
            self.polls[address] = access if seen is None else together(seen, access)
        writes = self.writes.get(address)
        return None if writes is None else self._unordered(address, access, ("write", writes))

    def _unordered(
        self, address: int, access: Access, *earlier: tuple[str, Several | None]
    ) -> list[tuple[str, Access]] | None:
        """Return the accesses in `earlier` that race with `access`; settle an instruction after ENOUGH races."""
        found = unordered(access, *earlier)
        if found is not None:
            key = address, id(access.code), access.instruction
            self.races[key] = self.races.get(key, 0) + len(found)
            if self.races[key] >= ENOUGH:
                self.settled.setdefault(address, {})[access.instruction] = access.code
        return found

    # --- what atomics pass on ----------------------------------------------------------------------------------------

    def take(self, address: int, thread: ThreadClock) -> None:
        """Let a thread that reads `address` know what atomics have left there."""
        left = self.left.get(address)
        if left is not None:
            left.take(thread)

    def leave(self, address: int, thread: ThreadClock) -> None:
        """Leave at `address`, to which the thread writes, what it has fenced."""
        left = self.left.get(address)
        if left is None:
            left = self.left[address] = Left()
        left.leave(thread)

    # --- units -------------------------------------------------------------------------------------------------------

    def units(self, address: int, size: int) -> range:
        """Return the addresses of the units of an element; cut the region's units smaller first if need be."""
        unit = gcd(self.unit, size, address - self.start)
        if unit != self.unit:
            tables: tuple[dict[int, Any], ...] = (self.reads, self.writes, self.atomics, self.polls, self.pending)
            for table in tables:
                # A copy of each list, because the parts of a unit have their own accesses from now on.
                finer = {at + part: copy(of) for at, of in table.items() for part in range(0, self.unit, unit)}
                table.clear()
                table.update(finer)
            self.unit = unit
        return range(address, address + size, unit)


def unordered(access: Access, *earlier: tuple[str, Several | None]) -> list[tuple[str, Access]] | None:
    """Return the accesses in `earlier` that did not happen before `access`, or None."""
    epoch = access.epoch
    found = None
    for operation, accesses in earlier:
        if accesses is None:
            continue
        known = accesses if isinstance(accesses, list) else [accesses]
        if operation == "atomic":
            known = _not_handed_over(known, epoch)
        for other in known:
            if other.epoch is not epoch and not before(other.epoch, epoch):
                if found is None:
                    found = []
                found.append((operation, other))
    return found


def _not_handed_over(atomics: list[Access], epoch: Epoch) -> list[Access]:
    """Return the atomics of one unit, in their order, without those that the last one known in `epoch` has ended.

    Atomics of one element have one order. A thread that follows the last of them, such as the last block of a grid that
    counts its blocks, may reset the counter by a plain store, if the other threads had a fence before their atomics.
    """
    followed = 0  # how many atomics come before the last one that `epoch` follows
    for number, one in enumerate(atomics):
        if one.epoch is epoch or before(one.epoch, epoch):
            followed = number
    return [one for number, one in enumerate(atomics) if number >= followed or not one.epoch.fenced]


def together(seen: Several, access: Access, thin: int = THIN) -> Several:
    """Return the accesses that a unit has `seen` and one more; drop some if they are many.

    At first all are kept, so that every pair of lines is found in whatever order threads run. Of one thread's accesses
    by the same instruction only the last is kept, because an access that is not ordered with an earlier one is not
    ordered with the last one either.

    From `thin` accesses on, two blocks per instruction, two warps of each team and two lanes of each warp stand for all
    others. Barriers and warp operations order whole blocks, teams and warps, so a thread that is not ordered with a
    dropped access is not ordered with a kept one either. A race is missed in two cases: every kept
    lane has signalled by a fence and an atomic of its own, and a dropped lane has not; or every kept warp has come to
    its team's barrier for the first time, and a dropped warp belongs to another team.
    """
    accesses = seen if isinstance(seen, list) else [seen]
    last = accesses[-1]
    if last.epoch.thread is access.epoch.thread and last.same_instruction(access):
        accesses[-1] = access
        return accesses if len(accesses) > 1 else access
    accesses.append(access)
    count = len(accesses)
    if count < thin or count & (count - 1):  # thin out at powers of two only, so that its cost stays small
        return accesses
    latest: dict[tuple, Access] = {}
    for one in accesses:  # in the order of each one's last access
        key = one.epoch.thread, id(one.code), one.instruction
        latest.pop(key, None)
        latest[key] = one
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
