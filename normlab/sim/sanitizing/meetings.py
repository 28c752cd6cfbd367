"""Record where threads meet: which accesses each barrier orders, and which threads do not come to it."""

from typing import Any

from normlab.sim.language.source import Line
from normlab.sim.language.turns import Turns, turns_of
from normlab.sim.protocols import Block, Thread
from normlab.sim.sanitizing.advice import BLOCK, CLUSTER, GRID, TEAM, WARP
from normlab.sim.sanitizing.clocks import ThreadClock, fence, meet, pass_barrier, pass_grid_sync
from normlab.sim.sanitizing.collector import Collector, act
from normlab.sim.sanitizing.findings import Finding
from normlab.sim.sanitizing.gathering import Gathering
from normlab.sim.sanitizing.locks import Locks
from normlab.sim.sanitizing.places import Place, line_at, parting_lines, place_of, same
from normlab.sim.sanitizing.races import Races
from normlab.sim.sanitizing.shadows import Shadows
from normlab.sim.sanitizing.watch import BlockMemory, Watch


class Meetings:
    """Advances the clocks, clears the shadows, and reports barriers to which some threads do not come."""

    def __init__(self, watch: Watch, shadows: Shadows, races: Races, locks: Locks, collector: Collector):
        """Start before the first meeting."""
        self._watch, self._shadows, self._races = watch, shadows, races
        self._locks, self._collector = locks, collector
        self._gone: ThreadClock | None = None  # a thread of a block that has ended
        self._gatherings: dict[Any, Gathering] = {}  # by cluster

    def warp(self, group: list[Any]) -> None:
        """Record that a warp operation orders the lanes of `group`."""
        meet([self._watch.clock(thread) for thread in group])
        # One lane's place stands for all: places passed serve the advice only, never the order.
        self._races.pass_sync(place_of(group[0]), WARP)

    def fence(self, thread: Thread, scope: str) -> None:
        """Let the thread's later atomics pass on what it has done and knows."""
        fence(self._watch.clock(thread), for_block_only=scope == "block")

    def barrier(self, block: Block, arrived: list[Any]) -> None:
        """Record that a barrier orders a block's threads; report threads at another call, and returned ones."""
        # Before the clocks move: a finding names the places where the threads stand now.
        self._compare(arrived)
        self._some_returned(block, arrived)
        memory = self._watch.memory(block)
        pass_barrier(memory.clock)
        if len(block.cluster.blocks) == 1:  # in a larger cluster other blocks reach its memory, which stay unordered
            memory.forget()

    def team(self, number: int, group: list[Any]) -> None:
        """Record that the team's barrier `number` orders the threads of `group`."""
        clocks = [self._watch.clock(thread) for thread in group]
        meet(clocks)
        # Threads of one team have a barrier of their own, which advice may name and `shadow.together` counts on.
        for clock in clocks:
            clock.team = number
        self._races.pass_sync(place_of(group[0]), TEAM)

    def cluster_arrive(self, thread: Thread) -> None:
        """Keep what a thread knows when it arrives at the cluster's barrier."""
        self._gathering(thread.block.cluster).arrive(self._watch.clock(thread))

    def cluster(self, blocks: list[Any]) -> None:
        """Record that what the threads of a cluster did before they arrived precedes what they do after their waits."""
        cluster = blocks[0].cluster
        for block in blocks:
            # A block may have no thread that waits: all have arrived and run on. They stand at no place to compare.
            if block.at_cluster:
                self._compare(block.at_cluster)
        self._gathering(cluster).meet(cluster)
        # After cluster_arrive a thread may have gone on to access shared memory: such accesses must not be forgotten.
        at_once = all(thread.operation == "cluster_sync" for block in blocks for thread in block.at_cluster)
        waiting = sum(len(block.at_cluster) for block in cluster.blocks)
        # Only if every thread stands here has none of them done anything since it arrived.
        if at_once and waiting == sum(len(block.threads) for block in cluster.blocks):
            for block in blocks:
                self._watch.memory(block).forget()

    def cluster_wait(self, thread: Thread) -> None:
        """Let a thread know what all threads of the cluster had done before they arrived."""
        self._gathering(thread.block.cluster).take(self._watch.clock(thread))

    def _gathering(self, cluster: Any) -> Gathering:
        if cluster not in self._gatherings:
            self._gatherings[cluster] = Gathering()
        return self._gatherings[cluster]

    def grid_sync(self, blocks: list[Any]) -> None:
        """Record that a grid sync orders all accesses; report blocks of which some threads do not come to it."""
        for block in blocks:
            waiting = block.at_grid_sync
            self._compare(waiting)
            first = block.warps[0].threads[0]  # it signals for its block
            if first in waiting:
                self._some_returned(block, waiting)
            else:
                self._missing("deadlock", waiting[0], self._watch.clock(first), "thread 0 of the block")
        # A block that has ended never signals, so on a GPU all others wait for ever. Here they go on after the finding.
        if self._gone is not None:
            self._missing("deadlock", blocks[0].at_grid_sync[0], self._gone, "all threads of another block")
        self._locks.forget()
        # The clocks forget what came before, so every shadow must: an access kept would race with all later ones.
        pass_grid_sync(self._watch.memory(block).clock for block in blocks)
        for region in self._shadows.regions.values():
            region.forget()
        for block in blocks:
            self._watch.memory(block).forget()

    def returned(self, thread: Thread) -> None:
        """Keep the thread: a later barrier may wait for it in vain, and then the finding names it."""
        # Only the last one: a finding needs one example, and the count of the others comes from the block.
        self._watch.memory(thread.block).returned = self._watch.clock(thread)

    def block_done(self, memory: BlockMemory) -> None:
        """Keep the block's last thread: a later grid sync may wait for it in vain, and then the finding names it."""
        self._gone = memory.returned

    # --- threads that are missing ------------------------------------------------------------------------------------

    def _some_returned(self, block: Block, arrived: list[Any]) -> None:
        """Report threads that have left the kernel. Hardware counts them as arrived; the programming guide does not."""
        returned = self._watch.memory(block).returned
        if returned is not None:
            count = len(block.threads) - len(arrived)
            some = "a thread" if count == 1 else f"{count} threads"
            self._missing("barrier-divergence", arrived[0], returned, f"{some} of the block")

    def _compare(self, arrived: list[Any]) -> None:
        """Report threads of a block that stand at different barriers, or in different turns of a loop at one."""
        places: list[tuple[Place, Any, Turns]] = []
        for thread in arrived:
            place, turns = place_of(thread), turns_of(thread.frame)
            first_there = next((one for one in places if same(place, one[0])), None)
            if first_there is None:
                places.append((place, thread, turns))
            elif turns != first_there[2]:
                self._out_of_step(*first_there[1:], thread, turns)
        reach = {"grid sync": GRID, "cluster_sync": CLUSTER, "cluster_wait": CLUSTER}.get(arrived[0].operation, BLOCK)
        # The advice needs to know which barriers a loop has already.
        self._races.pass_sync(places[0][0], reach)
        if len(places) > 1:
            # By their lines, so that every schedule gives the same finding.
            places.sort(key=lambda one: str(line_at(one[0])))
            (here, first, _), *others = places
            for there, second, _ in others:
                lines = parting_lines(here, there)
                self._divergent(first, lines[0], second, lines[1])

    def _divergent(self, one: Thread, line: Line | None, other: Thread, other_line: Line | None) -> None:
        """Report two threads at different barriers; `line` and `other_line` are the lines at which their paths part."""
        first = act(str(one.operation), self._watch.clock(one), line)
        second = act(str(other.operation), self._watch.clock(other), other_line)
        advice = (
            f"threads of one block wait at line {first.line} and at line {second.line}: all of them must reach "
            "one barrier, so take it out of the branch"
        )
        event = "barrier-divergence", first.source, second.source
        self._collector.add(event, None, lambda: Finding("barrier-divergence", None, None, (), first, second, advice))

    def _out_of_step(self, one: Any, turns: Turns, other: Any, other_turns: Turns) -> None:
        """Report two threads that come to one barrier in different turns of a loop."""
        line = line_at(place_of(one))
        first, second = (act(str(each.operation), self._watch.clock(each), line) for each in (one, other))
        # At one place both threads are in the same functions. Of a function's loops the outermost is compared first.
        pairs = zip(turns, other_turns, strict=True)
        (loop, turn), (_, other_turn) = next((here, there) for here, there in pairs if here != there)
        advice = (
            f"threads of one block come to the {first.operation} at line {first.line} in different turns of the "
            f"loop at line {loop}, {turn} and {other_turn}: let all of them take part in the same turns, and put the "
            "condition around the work before and after"
        )
        event = "barrier-divergence", line, "turns", loop
        self._collector.add(event, None, lambda: Finding("barrier-divergence", None, None, (), first, second, advice))

    def _missing(self, kind: str, thread: Thread, returned: ThreadClock, who: str) -> None:
        """Report that `thread` waits at a barrier for `who`, threads that have ended; `returned` is one of them."""
        first = act(str(thread.operation), self._watch.clock(thread), line_at(place_of(thread)))
        second = act("returned", returned, None)
        consequence = (
            "which waits for it" if kind == "deadlock" else "which today's GPUs forgive and CUDA does not allow"
        )
        advice = (
            f"{who} ended without coming to the {first.operation} at line {first.line}, {consequence}: let every "
            "thread reach it, and put the condition around the work before and after"
        )
        event = kind, first.source, "returned"
        self._collector.add(event, None, lambda: Finding(kind, None, None, (), first, second, advice))
