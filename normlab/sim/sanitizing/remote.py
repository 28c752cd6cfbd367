"""Report accesses to another block's shared memory before that block has begun or after it has ended."""

import sys
from typing import Any

from normlab.sim.machine.observed import ObservedArray
from normlab.sim.protocols import Block
from normlab.sim.sanitizing.advice import against_beginning, against_end
from normlab.sim.sanitizing.bounds import index_of, positions_of
from normlab.sim.sanitizing.clocks import Access, before
from normlab.sim.sanitizing.collector import Collector, act, act_of
from normlab.sim.sanitizing.findings import Finding
from normlab.sim.sanitizing.shadow import Region
from normlab.sim.sanitizing.watch import BlockMemory, Watch


class Remote:
    """Reports accesses to the memory of a block that may not have begun, or may have ended, as races."""

    def __init__(self, watch: Watch, collector: Collector):
        """Add to `collector`."""
        self._watch, self._collector = watch, collector
        self._ended: dict[Any, BlockMemory] = {}  # block of a cluster → its memory

    def reach(self, array: ObservedArray, key: Any, operation: str) -> ObservedArray:
        """Return `array` of another block, after a check that this block has begun."""
        owner = array.buffer.block
        if owner is not self._watch.cuda.current.block:
            # Only regions that another block has reached need the search when their block ends.
            array.buffer.state.reached = True
            # Until the cluster's barrier has been passed, or by a thread that has arrived there and not waited.
            if not owner.cluster.meetings or self._watch.cuda.current.arrival == 0:
                access = self._watch.access(sys._getframe(1))
                # Any thread stands for the block: none of them has done anything that this thread knows of.
                first = owner.warps[0].threads[0]
                event = "race", array.buffer.name, id(access.code), access.instruction, "not begun"
                index = _index(array, key)

                def make() -> Finding:
                    mine, theirs = act_of(operation, access), act("not begun", self._watch.clock(first), None)
                    advice = against_beginning(mine, theirs.block)
                    return Finding("race", array.buffer.name, "shared", index, mine, theirs, advice)

                self._collector.add(event, access.code, make)
        return array

    def refuse(self, array: ObservedArray, key: Any, operation: str) -> None:
        """Report an access to the memory of a block that has ended."""
        access, memory = self._watch.access(sys._getframe(1)), self._ended[array.buffer.block]
        self._note_end(array.buffer.name, _index(array, key), operation, access, memory)

    def end(self, block: Block, memory: BlockMemory) -> None:
        """Report the accesses from other blocks that may come after the end of `block`; remember that it has ended."""
        for region in memory.regions:
            if region.reached:
                self._outlived(region, memory)
        # A block alone in its cluster is reached by no other: not kept, or memory would grow with the grid.
        if len(block.cluster.blocks) > 1:
            self._ended[block] = memory

    def _outlived(self, region: Region, memory: BlockMemory) -> None:
        """Report accesses from other blocks that no barrier orders before the end of the block that owns the memory."""
        assert region.buffer is not None
        # One thread that knows of the access is enough: the block ends only when all its threads have returned.
        ends = [thread.now() for thread in memory.clock.threads]
        for operation, table in (("read", region.reads), ("write", region.writes), ("atomic", region.atomics)):
            for address, several in table.items():
                for access in several if isinstance(several, list) else [several]:
                    # `issuer`, because a copy's own clock belongs to no block of the launch (`CopyClock`).
                    foreign = access.epoch.thread.issuer.block is not memory.clock
                    if foreign and not any(before(access.epoch, end) for end in ends):
                        index = index_of(region.buffer, address)
                        self._note_end(region.buffer.name, index, operation, access, memory)

    def _note_end(self, name: str, index: tuple[int, ...], operation: str, access: Access, memory: BlockMemory) -> None:
        def make() -> Finding:
            assert memory.returned is not None
            mine, theirs = act_of(operation, access), act("returned", memory.returned, None)
            return Finding("race", name, "shared", index, mine, theirs, against_end(mine, theirs.block))

        self._collector.add(("race", name, id(access.code), access.instruction, "returned"), access.code, make)


def _index(array: ObservedArray, key: Any) -> tuple[int, ...]:
    return tuple(position for _, position, _ in positions_of(array, key))
