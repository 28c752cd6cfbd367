"""Tell all parts of the sanitizer which thread runs, at which instruction, and what is kept of its block."""

from collections.abc import Iterator
from types import FrameType
from typing import Any

from normlab.sim.language.paths import KERNEL_MARK
from normlab.sim.machine.observed import Buffer
from normlab.sim.machine.threads import WARP_SIZE
from normlab.sim.protocols import Block, Cuda, Thread
from normlab.sim.sanitizing.clocks import Access, BlockClock, ThreadClock
from normlab.sim.sanitizing.shadow import Region


class Flight:
    """An asynchronous copy under way: the elements at `addresses` of `buffer`, and the access that writes them."""

    __slots__ = ("addresses", "buffer", "under_way")

    def __init__(self, buffer: Buffer, addresses: list[int], under_way: Access):
        """Keep what later accesses to the copy's target are compared with."""
        self.buffer, self.addresses, self.under_way = buffer, addresses, under_way

    def units(self) -> Iterator[int]:
        """Return the addresses of the units that the copy writes."""
        for address in self.addresses:
            # Asked anew each time: an array of a smaller dtype may have cut the region's units meanwhile.
            yield from self.buffer.state.units(address, self.buffer.array.itemsize)

    def go_on(self) -> None:
        """Put the copy's write back into a shadow that has forgotten everything."""
        for unit in self.units():
            self.buffer.state.keep_write(unit, self.under_way)


class BlockMemory:
    """What the sanitizer keeps of one block: its clock, the shadows of its shared memory, and the copies under way."""

    __slots__ = ("clock", "copies", "dynamic", "regions", "returned")

    def __init__(self, block: Block):
        """Start without shared memory."""
        self.clock = BlockClock(tuple(block.index), block.cluster)
        self.copies: dict[int, Flight] = {}  # under way, by identity
        self.regions: list[Region] = []
        self.dynamic: Region | None = None
        self.returned: ThreadClock | None = None  # the last thread that has returned

    def forget(self) -> None:
        """Forget all accesses to the shared memory after a barrier has ordered them, except copies under way."""
        for region in self.regions:
            region.forget()
        for flight in self.copies.values():
            flight.go_on()


class Watch:
    """The threads and blocks of one launch."""

    cuda: Cuda  # set when the launch begins

    def __init__(self) -> None:
        """Start before the first block."""
        self.blocks: dict[Any, BlockMemory] = {}  # of the blocks that have not ended

    def clock(self, thread: Thread) -> ThreadClock:
        """Return the clock of a thread."""
        if thread.seen is None:
            index, extent = thread.index, self.cuda.blockDim
            warp = (index.x + extent.x * (index.y + extent.y * index.z)) // WARP_SIZE
            thread.seen = ThreadClock(self.memory(thread.block).clock, warp, thread.lane, tuple(index))
        return thread.seen

    def memory(self, block: Block) -> BlockMemory:
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
        if access is None or access.code is not code:
            # The same tuple for every access of an instruction in an epoch: shadows compare with `is`, and save memory.
            access = epoch.accesses[instruction] = Access(epoch, code, instruction)
        return access
