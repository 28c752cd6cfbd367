"""The observer behind `sanitize`: the threads' side. Who has met whom, who is missing, and who waits for ever."""

import sys
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from normlab.sim.sanitizing.accesses import Accesses
from normlab.sim.sanitizing.advice import BLOCK, GRID, WARP
from normlab.sim.sanitizing.clocks import ThreadClock, fence, meet, pass_barrier, pass_grid_sync
from normlab.sim.sanitizing.collector import act, act_of
from normlab.sim.sanitizing.findings import Act, Finding, Report
from normlab.sim.sanitizing.places import Place, line_at, parting_lines, place_of, same
from normlab.sim.scheduler import wanted
from normlab.sim.source import Line


class Sanitizer(Accesses):
    """Watches one launch."""

    def __init__(self, uninitialized: Sequence[np.ndarray], inputs: Container[str]):
        """Start before the launch: some arguments count as never written, and some parameters nobody writes."""
        super().__init__(uninitialized, inputs)
        self._gone: ThreadClock | None = None  # a thread of a block that has ended
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
        for region in memory.regions:
            region.forget()

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
            for region in self.memory(block).regions:
                region.forget()

    def returned(self, thread: Any) -> None:
        """Keep the thread for a barrier that may miss it."""
        self.memory(thread.block).returned = self.clock(thread)

    def block_done(self, block: Any) -> None:
        """Say what is wrong with a block's shared memory, and forget it."""
        memory = self.blocks.pop(block)
        self._gone = memory.returned
        for region in memory.regions:
            self.settle(region)
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
        self.pass_sync(places[0][0], GRID if arrived[0].operation == "grid sync" else BLOCK)
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
