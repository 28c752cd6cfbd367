"""Shadow memory: who has read, written and updated each element, as far as a later access may race with it.

A `Region` shadows one allocation: all arrays that lie in it, under whatever names and dtypes, share it. It works in
units of bytes that every element is made of; where all arrays have one dtype, a unit is an element.

Shared memory forgets everything at a barrier of its block, and global memory at a grid sync: those order it with all
that follows.
"""

from math import gcd

import numpy as np
from numpy.lib.stride_tricks import as_strided

from normlab.sim.observe import Buffer
from normlab.sim.sanitizing.clocks import Access, Left, ThreadClock, before

THIN = 64  # accesses to one unit, from which on only a few of every instruction are kept
KEPT = 2  # of these: blocks an instruction, warps a block, lanes a warp
WRITTEN, GARBAGE, UPDATED = 0, 1, 2  # UPDATED: by an atomic, so that it is garbage for other atomics only: one finding

Accesses = dict[int, list[Access]]  # by the address of a unit


class Region:
    """The shadow of one allocation, from `start` on the imagined device."""

    __slots__ = ("atomics", "garbage", "left", "pending", "reads", "shared", "start", "unit", "writes")

    def __init__(self, start: int, unit: int, shared: bool = True):
        """Have elements of `unit` bytes. `shared`: more than one thread can reach it."""
        self.start, self.unit, self.shared = start, unit, shared
        self.reads: Accesses = {}
        self.writes: Accesses = {}
        self.atomics: Accesses = {}
        self.left: dict[int, Left] = {}  # what atomics pass on at their addresses
        self.garbage: bytearray | None = None  # WRITTEN, GARBAGE or UPDATED for each byte; None: all are written
        self.pending: dict[int, list[tuple[str, Access, Buffer]]] = {}  # reads of garbage, by address

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
        for accesses in (self.reads, self.writes, self.atomics, self.left):
            accesses.clear()

    # --- accesses: each returns those before it that it races with, by what they did ---------------------------------

    def read(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Note a read of one unit."""
        seen = self.reads.get(address)
        if seen is None:
            self.reads[address] = [access]
        elif seen[-1] is access:  # nobody has read it since; who has written it since has met this access
            return None
        else:
            _add(seen, access)
        writes, atomics = self.writes.get(address), self.atomics.get(address)
        if writes is None and atomics is None:
            return None
        return _unordered(access, ("write", writes), ("atomic", atomics))

    def write(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Note a write of one unit."""
        writes, reads, atomics = self.writes.get(address), self.reads.get(address), self.atomics.get(address)
        if writes is None:
            self.writes[address] = [access]
        elif writes[-1] is not access:
            _add(writes, access)
        if writes is None and reads is None and atomics is None:
            return None
        return _unordered(access, ("write", writes), ("read", reads), ("atomic", atomics))

    def atomic(self, address: int, access: Access) -> list[tuple[str, Access]] | None:
        """Note an atomic update of one unit."""
        seen = self.atomics.get(address)
        if seen is None:
            self.atomics[address] = [access]
        elif seen[-1] is not access:
            _add(seen, access)
        writes, reads = self.writes.get(address), self.reads.get(address)
        if writes is None and reads is None:
            return None
        return _unordered(access, ("write", writes), ("read", reads))

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
            tables: tuple[dict[int, list], ...] = (self.reads, self.writes, self.atomics, self.pending)
            for table in tables:
                finer = {at + part: list(of) for at, of in table.items() for part in range(0, self.unit, unit)}
                table.clear()
                table.update(finer)
            self.unit = unit
        return range(address, address + size, unit)


def _unordered(access: Access, *earlier: tuple[str, list[Access] | None]) -> list[tuple[str, Access]] | None:
    """Return the accesses in `earlier` that did not happen before `access`, or None."""
    epoch = access[0]
    found = None
    for operation, accesses in earlier:
        for other in accesses or ():
            if other[0] is not epoch and not before(other[0], epoch):
                if found is None:
                    found = []
                found.append((operation, other))
    return found


def _add(accesses: list[Access], access: Access) -> None:
    """Add an access to those of a unit; drop some if they are many.

    All are kept at first, so that every pair of lines is found, in whatever order threads run. Of the same instruction
    by the same thread the last will do: what is not ordered with an earlier one is not with the last one either.
    Beyond that, knowledge comes in blocks and warps, so two blocks, two warps of each and two lanes of each stand for
    all others: a thread that is not ordered with one that was dropped is not ordered with one of them either.
    """
    accesses.append(access)
    count = len(accesses)
    if count < THIN or count & (count - 1):  # at every power of two
        return
    latest = {(one[0].thread, id(one[1]), one[2]): one for one in accesses}
    kept: dict[tuple, dict] = {}
    accesses.clear()
    for (thread, code, instruction), one in latest.items():
        blocks = kept.setdefault((code, instruction), {})
        if thread.block in blocks or len(blocks) < KEPT:
            warps = blocks.setdefault(thread.block, {})
            if thread.warp in warps or len(warps) < KEPT:
                lanes = warps.setdefault(thread.warp, [])
                if len(lanes) < KEPT:
                    lanes.append(thread.lane)
                    accesses.append(one)
    if accesses[-1] is not access:
        accesses.append(access)
