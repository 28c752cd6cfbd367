"""The observer behind `sanitize`: the threads' side. Who has met whom, who is missing, and who waits for ever."""

import sys
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from normlab.sim.language.source import Line
from normlab.sim.machine.observed import ObservedArray
from normlab.sim.machine.waiting import wanted
from normlab.sim.sanitizing.accesses import Accesses
from normlab.sim.sanitizing.advice import BLOCK, CLUSTER, GRID, TEAM, WARP, against_beginning, against_end
from normlab.sim.sanitizing.bounds import index_of, positions_of
from normlab.sim.sanitizing.clocks import (
    Access,
    Gathering,
    ThreadClock,
    before,
    fence,
    meet,
    pass_barrier,
    pass_grid_sync,
)
from normlab.sim.sanitizing.collector import act, act_of
from normlab.sim.sanitizing.findings import Act, Finding, Report
from normlab.sim.sanitizing.notes import BlockMemory
from normlab.sim.sanitizing.places import Place, line_at, parting_lines, place_of, same
from normlab.sim.sanitizing.shadow import Region


class Sanitizer(Accesses):
    """Watches one launch."""

    def __init__(self, uninitialized: Sequence[np.ndarray], inputs: Container[str]):
        """Start before the launch: some arguments count as never written, and some parameters nobody writes."""
        super().__init__(uninitialized, inputs)
        self._gone: ThreadClock | None = None  # a thread of a block that has ended
        self._ended: dict[Any, BlockMemory] = {}  # of blocks of clusters
        self._gatherings: dict[Any, Gathering] = {}  # by cluster
        self._outside_mask: list[Any] = []  # threads that are about to shuffle with nobody, and have been noted
        self._excused: Any = None  # one of these, which is shuffling

    # --- who has met whom --------------------------------------------------------------------------------------------

    def meeting(self, group: list[Any]) -> None:
        """Order lanes by a warp operation."""
        meet([self.clock(thread) for thread in group])
        self.pass_sync(place_of(group[0]), WARP)
        self._excused = None
        if self._outside_mask and group[0] in self._outside_mask:
            self._excused = group[0]
            self._outside_mask.remove(group[0])

    def fence(self, thread: Any, scope: str) -> None:
        """Make what a thread knows fit to be passed on."""
        fence(self.clock(thread), for_block_only=scope == "block")

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Order the threads of a block, and look whether all of them stand at one call."""
        self._compare(arrived)
        memory = self.memory(block)
        if memory.returned is not None:
            count = len(block.threads) - len(arrived)
            some = "a thread" if count == 1 else f"{count} threads"
            self._missing("barrier-divergence", arrived[0], memory.returned, f"{some} of the block")
        pass_barrier(memory.clock)
        if len(block.cluster.blocks) == 1:  # else other blocks reach its memory, which this does not order
            memory.forget()

    def team_meets(self, number: int, group: list[Any]) -> None:
        """Order the threads of a team."""
        clocks = [self.clock(thread) for thread in group]
        meet(clocks)
        for clock in clocks:
            clock.team = number
        self.pass_sync(place_of(group[0]), TEAM)

    def cluster_arrive(self, thread: Any) -> None:
        """Note what a thread brings to the cluster's barrier."""
        self._gathering(thread.block.cluster).arrive(self.clock(thread))

    def cluster_meets(self, blocks: list[Any]) -> None:
        """Order what the threads of a cluster did before they arrived with what they do when they have waited."""
        cluster = blocks[0].cluster
        for block in blocks:
            if block.at_cluster:
                self._compare(block.at_cluster)
        self._gathering(cluster).meet(cluster)
        at_once = all(thread.operation == "cluster_sync" for block in blocks for thread in block.at_cluster)
        waiting = sum(len(block.at_cluster) for block in cluster.blocks)
        if at_once and waiting == sum(len(block.threads) for block in cluster.blocks):  # nobody is elsewhere
            for block in blocks:
                self.memory(block).forget()

    def cluster_wait(self, thread: Any) -> None:
        """Let a thread know what all had done before they arrived."""
        self._gathering(thread.block.cluster).take(self.clock(thread))

    def _gathering(self, cluster: Any) -> Gathering:
        if cluster not in self._gatherings:
            self._gatherings[cluster] = Gathering()
        return self._gatherings[cluster]

    def grid_sync(self, blocks: list[Any]) -> None:
        """Order everything."""
        for block in blocks:
            waiting = block.at_grid_sync
            self._compare(waiting)
            first = block.warps[0].threads[0]  # which signals for its block; others may have returned
            if first not in waiting:
                self._missing("deadlock", waiting[0], self.clock(first), "thread 0 of the block")
        if self._gone is not None:
            self._missing("deadlock", blocks[0].at_grid_sync[0], self._gone, "all threads of another block")
        pass_grid_sync(self.memory(block).clock for block in blocks)
        for region in self.regions.values():
            region.forget()
        for block in blocks:
            self.memory(block).forget()

    def returned(self, thread: Any) -> None:
        """Keep the thread for a barrier that may miss it."""
        self.memory(thread.block).returned = self.clock(thread)

    def block_done(self, block: Any) -> None:
        """Say what is wrong with a block's shared memory, and forget it."""
        memory = self.blocks.pop(block)
        self._gone = memory.returned
        for region in memory.regions:
            self.settle(region)
            if region.reached:
                self._outlived(region, memory)
        if len(block.cluster.blocks) > 1:
            self._ended[block] = memory
        memory.clock.threads.clear()

    def report(self, kernel: str) -> Report:
        """Return all that was found; `kernel` has ended."""
        for region in self.regions.values():
            self.settle(region)
        for memory in self.blocks.values():
            for region in memory.regions:
                self.settle(region)
        return self.collector.report(kernel)

    # --- who is missing ----------------------------------------------------------------------------------------------

    def _compare(self, arrived: list[Any]) -> None:
        """Note threads of a block that stand at another barrier than the rest."""
        places: list[tuple[Place, Any]] = []
        for thread in arrived:
            place = place_of(thread)
            if not any(same(place, other) for other, _ in places):
                places.append((place, thread))
        reach = {"grid sync": GRID, "cluster_sync": CLUSTER, "cluster_wait": CLUSTER}.get(arrived[0].operation, BLOCK)
        self.pass_sync(places[0][0], reach)
        if len(places) > 1:
            places.sort(key=lambda one: str(line_at(one[0])))
            (here, first), *others = places
            for there, second in others:
                lines = parting_lines(here, there)
                self._divergent(first, lines[0], second, lines[1])

    def _divergent(self, one: Any, line: Line | None, other: Any, other_line: Line | None) -> None:
        first = act(one.operation, self.clock(one), line)
        second = act(other.operation, self.clock(other), other_line)
        advice = (
            f"threads of one block wait at line {first.line} and at line {second.line}: all of them must reach "
            "one barrier, so take it out of the branch"
        )
        event = "barrier-divergence", first.source, second.source
        self.collector.add(event, None, lambda: Finding("barrier-divergence", None, None, (), first, second, advice))

    def _missing(self, kind: str, thread: Any, returned: ThreadClock, who: str) -> None:
        first = act(thread.operation, self.clock(thread), line_at(place_of(thread)))
        second = act("returned", returned, None)
        consequence = (
            "which waits for it" if kind == "deadlock" else "which today's GPUs forgive and CUDA does not allow"
        )
        advice = (
            f"{who} ended without coming to the {first.operation} at line {first.line}, {consequence}: let every "
            "thread reach it, and put the condition around the work before and after"
        )
        event = kind, first.source, "returned"
        self.collector.add(event, None, lambda: Finding(kind, None, None, (), first, second, advice))

    # --- blocks of a cluster that are not there ----------------------------------------------------------------------

    def remote(self, array: ObservedArray, key: Any, operation: str) -> ObservedArray:
        """Note that another block reaches the array, and whether its block may not have begun."""
        owner = array.buffer.block
        if owner is not self.cuda.current.block:
            array.buffer.state.reached = True
            if not owner.cluster.meetings or self.cuda.current.arrival == 0:  # has arrived, and not waited
                access = self.access(sys._getframe(1))
                first = owner.warps[0].threads[0]
                event = "race", array.buffer.name, id(access[1]), access[2], "not begun"
                index = tuple(position for _, position, _ in positions_of(array, key))

                def make() -> Finding:
                    mine, theirs = act_of(operation, access), act("not begun", self.clock(first), None)
                    advice = against_beginning(mine, theirs.block)
                    return Finding("race", array.buffer.name, "shared", index, mine, theirs, advice)

                self.collector.add(event, access[1], make)
        return array

    def refuse_remote(self, array: ObservedArray, key: Any, operation: str) -> bool:
        """Note an access to the memory of a block that has ended."""
        index = tuple(position for _, position, _ in positions_of(array, key))
        access, memory = self.access(sys._getframe(1)), self._ended[array.buffer.block]
        self._note_end(array.buffer.name, index, operation, access, memory)
        return True

    def _outlived(self, region: Region, memory: BlockMemory) -> None:
        """Note accesses from other blocks that nothing lets happen before the end of the memory's own."""
        assert region.buffer is not None
        ends = [thread.now() for thread in memory.clock.threads]
        for operation, table in (("read", region.reads), ("write", region.writes), ("atomic", region.atomics)):
            for address, several in table.items():
                for access in several if isinstance(several, list) else [several]:
                    foreign = access[0].thread.issuer.block is not memory.clock
                    if foreign and not any(before(access[0], end) for end in ends):
                        index = index_of(region.buffer, address)
                        self._note_end(region.buffer.name, index, operation, access, memory)

    def _note_end(self, name: str, index: tuple[int, ...], operation: str, access: Access, memory: BlockMemory) -> None:
        def make() -> Finding:
            assert memory.returned is not None
            mine, theirs = act_of(operation, access), act("returned", memory.returned, None)
            return Finding("race", name, "shared", index, mine, theirs, against_end(mine, theirs.block))

        self.collector.add(("race", name, id(access[1]), access[2], "returned"), access[1], make)

    # --- lanes and masks ---------------------------------------------------------------------------------------------

    def refuse_mask(self, thread: Any, operation: str, mask: int) -> bool:
        """Note a lane that its own mask leaves out."""
        access = self.access(sys._getframe(1))
        advice = (
            f"lane {thread.lane} calls {operation} with mask {mask:#010x}, which leaves the lane itself out: "
            "give a mask of all lanes that come to this call"
        )

        def make() -> Finding:
            return Finding("shuffle-mask", None, None, (), act_of(operation, access), None, advice)

        self.collector.add(("shuffle-mask", id(access[1]), access[2]), access[1], make)
        if operation.startswith("shfl"):
            self._outside_mask.append(thread)
        return True

    def refuse_shuffle(self, thread: Any, source: int, why: str) -> bool:
        """Note a lane that reads from one that gives nothing."""
        if thread is self._excused:
            return True
        threads = thread.warp.threads
        first = act(thread.operation, self.clock(thread), line_at(place_of(thread)))
        second = act("absent", self.clock(threads[source]), None) if source < len(threads) else None
        absent = why == "has returned"  # to the reader of the line it has, or was never in the branch
        remedy = "outside of the condition" if absent else "and name it in the mask"
        advice = (
            f"lane {thread.lane} reads from lane {source}, which {'does not come to this call' if absent else why} "
            f"(mask {thread.mask:#010x}): let every lane that is read come to this call, {remedy}"
        )
        event = "shuffle-mask", first.source, why
        self.collector.add(event, None, lambda: Finding("shuffle-mask", None, None, (), first, second, advice))
        return True

    # --- who waits for ever ------------------------------------------------------------------------------------------

    def hangs(self, blocks: list[Any]) -> None:
        """Note where the threads wait, and for whom."""
        places: dict[tuple[Line | None, str], Act] = {}
        reasons: dict[tuple[Line | None, str], str] = {}
        seconds: dict[tuple[Line | None, str], Act] = {}
        for thread in (thread for block in blocks for thread in block.threads if thread.operation is not None):
            waits = act(thread.operation.removeprefix("a "), self.clock(thread), line_at(place_of(thread)))
            key = waits.source, waits.operation
            if key in places:
                seconds.setdefault(key, waits)
            else:
                places[key], reasons[key] = waits, wanted(thread)
        first, *others = sorted(places, key=str)
        advice = "nobody can go on: " + ", and ".join(
            f"the {operation} at line {source and source.number} waits for {reasons[source, operation]}"
            for source, operation in (first, *others)
        )
        partners: list[Act | None] = [places[other] for other in others]
        for second in partners or [seconds.get(first)]:
            finding = Finding("deadlock", None, None, (), places[first], second, advice)
            self.collector.add(("deadlock", second), None, lambda finding=finding: finding)  # type: ignore[misc]
