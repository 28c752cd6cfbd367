"""What the sanitizer keeps of threads, blocks and memory, and how it notes what is wrong with an access."""

from collections.abc import Container, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np

from normlab.sim.language.paths import KERNEL_MARK
from normlab.sim.language.source import line_of
from normlab.sim.machine.memory import DYNAMIC_ADDRESS
from normlab.sim.machine.observe import Observer
from normlab.sim.machine.observed import Buffer, ObservedArray, allocation_of, pointer
from normlab.sim.machine.threads import WARP_SIZE
from normlab.sim.sanitizing.advice import (
    BLOCK,
    CLUSTER,
    GRID,
    TEAM,
    WARP,
    against_copy,
    against_garbage,
    against_index,
    against_race,
)
from normlab.sim.sanitizing.bounds import index_of, positions_of
from normlab.sim.sanitizing.clocks import Access, BlockClock, CopyClock, ThreadClock, before
from normlab.sim.sanitizing.collector import Collector, act_of
from normlab.sim.sanitizing.findings import Finding
from normlab.sim.sanitizing.loops import in_one_loop, loop_without_barrier
from normlab.sim.sanitizing.places import Place
from normlab.sim.sanitizing.shadow import GARBAGE, Region


class BlockMemory:
    """What the sanitizer keeps of one block: its clock, the shadows of its shared memory, the copies into that."""

    __slots__ = ("clock", "copies", "dynamic", "regions", "returned")

    def __init__(self, block: Any):
        """Start without shared memory."""
        self.clock = BlockClock(tuple(block.index), block.cluster)
        self.copies: dict[int, Flight] = {}  # under way, by identity
        self.regions: list[Region] = []
        self.dynamic: Region | None = None
        self.returned: ThreadClock | None = None  # the last thread that has

    def forget(self) -> None:
        """Begin anew, as a barrier has ordered all that was done to the shared memory; not what is under way."""
        for region in self.regions:
            region.forget()
        for flight in self.copies.values():
            flight.go_on()


class Flight:
    """An asynchronous copy under way: the elements at `addresses` of `buffer`, and who is held to write them."""

    __slots__ = ("addresses", "buffer", "under_way")

    def __init__(self, buffer: Buffer, addresses: list[int], under_way: Access):
        """Keep what `arrive` and `go_on` need."""
        self.buffer, self.addresses, self.under_way = buffer, addresses, under_way

    def units(self) -> Iterator[int]:
        """Return the addresses of the units that the copy writes."""
        for address in self.addresses:
            yield from self.buffer.state.units(address, self.buffer.array.itemsize)

    def go_on(self) -> None:
        """Be under way in a shadow that has forgotten everything."""
        for unit in self.units():
            self.buffer.state.keep_write(unit, self.under_way)


class Notes(Observer):
    """The observer's books."""

    def __init__(self, uninitialized: Sequence[np.ndarray], inputs: Container[str]):
        """Know of no memory yet. Of the arguments, `uninitialized` have no contents, and nobody writes `inputs`."""
        super().__init__()
        self.uninitialized, self.inputs = uninitialized, inputs
        self.collector = Collector()
        self.repeated = 0  # reads like the last one at an address
        self.blocks: dict[Any, BlockMemory] = {}  # of the blocks that have not ended
        self.copied: set[tuple[int, int]] = set()  # instructions that start asynchronous copies
        self.copiers: dict[ThreadClock, CopyClock] = {}  # by thread: who writes what is under way
        self.passed: dict[tuple[int, int, int], CodeType] = {}  # instructions where threads met, and whose
        self.regions: dict[int, Region] = {}  # of global memory, by the allocation's address

    # --- who and where -----------------------------------------------------------------------------------------------

    def clock(self, thread: Any) -> ThreadClock:
        """Return the clock of a thread."""
        if thread.seen is None:
            index, extent = thread.index, self.cuda.blockDim
            warp = (index.x + extent.x * (index.y + extent.y * index.z)) // WARP_SIZE
            thread.seen = ThreadClock(self.memory(thread.block).clock, warp, thread.lane, tuple(index))
        return thread.seen

    def memory(self, block: Any) -> BlockMemory:
        """Return what is kept of a block."""
        if block not in self.blocks:
            self.blocks[block] = BlockMemory(block)
        return self.blocks[block]

    def access(self, frame: FrameType | None) -> Access:
        """Return the running thread's access at the innermost line of kernel source around `frame`."""
        while KERNEL_MARK not in frame.f_globals:  # type: ignore[union-attr]
            frame = frame.f_back  # type: ignore[union-attr]
        clock = self.cuda.current.seen
        if clock is None:
            clock = self.clock(self.cuda.current)
        epoch = clock.epoch
        if epoch is None:
            epoch = clock.now()
        code, instruction = frame.f_code, frame.f_lasti  # type: ignore[union-attr]
        access = epoch.accesses.get(instruction)
        if access is None or access[1] is not code:
            access = epoch.accesses[instruction] = (epoch, code, instruction)
        return access

    def pass_sync(self, place: Place, reach: int) -> None:
        """Remember where the threads of a warp, a team or a block have met: advice depends on it."""
        for code, instruction in place:
            self.passed[id(code), instruction, reach] = code

    # --- memory ------------------------------------------------------------------------------------------------------

    def add(self, buffer: Buffer) -> None:
        """Give memory its shadow."""
        array, block = buffer.array, None if buffer.block is None else self.memory(buffer.block)
        unit = max(1, array.itemsize)
        if block is None:
            start = buffer.allocation.start
            region = buffer.state = self.regions.setdefault(start, Region(start, unit))
            region.units(buffer.address, unit)
            self._empty(buffer, region)
            return
        dynamic = buffer.space == "shared" and buffer.address == DYNAMIC_ADDRESS
        if dynamic and block.dynamic is not None:
            buffer.state = block.dynamic
            return
        region = buffer.state = Region(buffer.address, unit, shared=buffer.space == "shared")
        size = buffer.block.shared["dynamic"].nbytes if dynamic else array.nbytes
        region.garbage = bytearray([GARBAGE]) * size
        region.reads_only = False
        if region.shared:
            region.buffer = buffer
            block.regions.append(region)
        if dynamic:
            block.dynamic = region

    def _empty(self, buffer: Buffer, region: Region) -> None:
        """Note which elements of an argument count as never written."""
        start, size, _ = allocation_of(buffer.array)
        for array in self.uninitialized:
            if np.may_share_memory(array, buffer.array):
                part = array if allocation_of(array)[0] == start else buffer.array
                if region.garbage is None:
                    region.garbage = bytearray(size)
                    region.reads_only = False
                region.never_written(pointer(part) - start, part.shape, part.strides, part.itemsize)

    # --- what is wrong -----------------------------------------------------------------------------------------------

    def outside(self, operation: str, array: ObservedArray, key: Any, access: Access) -> bool:
        """Note an index that is negative or out of bounds; return whether it is out of bounds."""
        outside = False
        positions, name = positions_of(array, key), array.buffer.name
        for axis, position, extent in positions:
            if 0 <= position < extent:
                continue
            kind = "negative-index" if -extent <= position < 0 else "out-of-bounds"
            outside = outside or kind == "out-of-bounds"

            def make(kind: str = kind, wrong: tuple = (axis, position, extent)) -> Finding:
                return Finding(
                    kind,
                    name,
                    array.buffer.space,
                    tuple(place for _, place, _ in positions),
                    act_of(operation, access),
                    None,
                    against_index(kind, name, *wrong),
                )

            self.collector.add((kind, name, id(access[1]), access[2]), access[1], make)
        return outside

    def garbage(self, operation: str, buffer: Buffer, address: int, access: Access) -> None:
        """Note a read of what was never written, or wait for a write that it is in a race with."""
        region: Region = buffer.state
        if not region.shared:
            self._note_garbage(operation, buffer, address, access)
            return
        pending = region.pending.setdefault(address, [])
        if not pending or pending[-1][1] is not access:
            pending.append((operation, access, buffer))

    def _note_garbage(self, operation: str, buffer: Buffer, address: int, access: Access) -> None:
        def make() -> Finding:
            first = act_of(operation, access)
            advice = against_garbage(buffer.name, buffer.space, operation, first.line)
            index = index_of(buffer, address)
            return Finding("uninitialized-read", buffer.name, buffer.space, index, first, None, advice)

        event = "uninitialized-read", buffer.name, id(access[1]), access[2]
        self.collector.add(event, access[1], make)

    def settle(self, region: Region) -> None:
        """Note the reads of garbage that no other thread's write was in a race with."""
        for address, reads in region.pending.items():
            for operation, access, buffer in reads:
                self._note_garbage(operation, buffer, address, access)
        region.pending.clear()

    def races(
        self,
        operation: str,
        buffer: Buffer,
        address: int,
        access: Access,
        earlier: list[tuple[str, Access]],
        same_value: bool = False,
    ) -> None:
        """Note that `access` races with `earlier` ones."""
        buffer.state.pending.pop(address, None)  # whether it was written yet is a matter of luck: the race is the cause
        me = self._named(operation, access), access
        for other_operation, other in earlier:
            reach = _reach(access[0].thread.issuer, other[0].thread.issuer)
            under_way = isinstance(other[0].thread, CopyClock)

            def make(
                one: tuple[str, Access] = (self._named(other_operation, other), other),
                reach: int = reach,
                under_way: bool = under_way,
            ) -> Finding:
                if under_way:
                    copy, act = act_of(*one), act_of(*me)
                    index, advice = index_of(buffer, address), against_copy(copy, act)
                    return Finding("race", buffer.name, buffer.space, index, copy, act, advice)
                return self._race(one, me, buffer, address, reach)

            event = "race", buffer.name, id(access[1]), access[2], id(other[1]), other[2], reach, under_way
            benign = same_value and other_operation == "write"
            self.collector.add(event, (access[1], other[1]), make, benign, reach)

    def _named(self, operation: str, access: Access) -> str:
        """Return what an access is called in a report."""
        return "copy" if operation == "write" and (id(access[1]), access[2]) in self.copied else operation

    def _race(
        self, one: tuple[str, Access], other: tuple[str, Access], buffer: Buffer, address: int, reach: int
    ) -> Finding:
        """Return a race with its accesses in the order of their lines, or of a loop that has a barrier between them."""
        line = self._signal(one[1], other[1], address, reach)
        signal = None if line is None else (act_of(*one), line)
        one, other = sorted((one, other), key=lambda side: (act_of(*side).line or 0, side[0]))
        first, second = act_of(*one), act_of(*other)
        (_, code, _), (_, other_code, _) = one[1], other[1]
        barriers = [
            line_of(its_code, instruction).number
            for (_, instruction, its_reach), its_code in self.passed.items()
            if its_code is code is other_code and its_reach >= reach
        ]
        next_turn = any((first.line or 0) < line < (second.line or 0) for line in barriers)
        in_loop = (
            first.line == second.line
            and first.operation != second.operation
            and buffer.space == "shared"
            and loop_without_barrier(code, first.line or 0, barriers)
        )
        if next_turn or in_loop:
            first, second = second, first
        if in_loop and self.cuda.blockDim.x * self.cuda.blockDim.y * self.cuda.blockDim.z > WARP_SIZE:
            reach = max(reach, BLOCK)  # for a part of the threads the loop may go on longer than for others
        advice = against_race(first, second, reach, next_turn, in_loop, signal)
        return Finding("race", buffer.name, buffer.space, index_of(buffer, address), first, second, advice)

    def _signal(self, earlier: Access, later: Access, address: int, reach: int) -> int | None:
        """Return the line of the atomic that follows `earlier` and tells the thread of `later`, which lacks a fence.

        Within a block the other thread must ask by another atomic, in a loop most often; else both just count.
        """
        epoch, code, _ = earlier
        mine, theirs = epoch.thread, later[0].thread
        line = line_of(*earlier[1:]).number
        heard = [
            (at, access)
            for at, access in theirs.block.signals.values()
            if at != address and (access[0].thread is theirs or before(access[0], later[0]))
        ]
        found = []
        for at, told in mine.block.signals.values():
            number = line_of(*told[1:]).number
            if told[0].thread is mine:
                follows = told[1] is not code or number >= line or in_one_loop(code, line, number)
            else:
                follows = before(epoch, told[0])
            if follows and any(at == there and (reach >= CLUSTER or told[1:] != by[1:]) for there, by in heard):
                found.append(number)
        return min(found, key=lambda number: (number < line, number), default=None)


def _reach(one: ThreadClock, other: ThreadClock) -> int:
    """Return the smallest group that two threads are in."""
    if one.block is other.block:
        if one.warp == other.warp:
            return WARP
        return TEAM if one.team == other.team > 0 else BLOCK
    return CLUSTER if one.block.cluster is other.block.cluster else GRID
