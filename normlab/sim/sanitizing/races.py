"""Report races, two accesses that nothing orders, with advice that fits the two threads and lines."""

from types import CodeType

from normlab.sim.language.source import line_of
from normlab.sim.machine.observed import Buffer
from normlab.sim.machine.threads import WARP_SIZE
from normlab.sim.sanitizing.advice import BLOCK, CLUSTER, GRID, TEAM, WARP, against_copy, against_race
from normlab.sim.sanitizing.bounds import index_of
from normlab.sim.sanitizing.clocks import Access, CopyClock, ThreadClock, before
from normlab.sim.sanitizing.collector import Collector, act_of
from normlab.sim.sanitizing.findings import Finding
from normlab.sim.sanitizing.loops import in_one_loop, loop_without_barrier
from normlab.sim.sanitizing.places import Place
from normlab.sim.sanitizing.watch import Watch


class Races:
    """Adds races to the findings."""

    def __init__(self, watch: Watch, collector: Collector):
        """Start without a race; findings go to `collector`."""
        self._watch, self._collector = watch, collector
        self._passed: dict[tuple[int, int, int], CodeType] = {}  # instructions where threads met, and their code
        self._copying: set[tuple[int, int]] = set()  # instructions that start asynchronous copies

    def pass_sync(self, place: Place, reach: int) -> None:
        """Remember where threads of a group of size `reach` have met, because advice depends on such barriers."""
        for code, instruction in place:
            self._passed[id(code), instruction, reach] = code

    def starts_copy(self, access: Access) -> None:
        """Remember that the instruction of `access` starts asynchronous copies."""
        _, code, instruction = access
        self._copying.add((id(code), instruction))

    def note(
        self,
        operation: str,
        buffer: Buffer,
        address: int,
        access: Access,
        earlier: list[tuple[str, Access]],
        same_value: bool = False,
    ) -> None:
        """Report that `access` races with each of the `earlier` accesses, of which each has its operation beside it.

        same_value: whether `access` writes the value that the earlier write has left.
        """
        pending = buffer.state.pending
        if address in pending:
            reads = pending[address]
            pending[address] = [one for one in reads if not _in_doubt(one[0], one[1], operation, access)]
        me = self._named(operation, access), access
        epoch, code, instruction = access
        for other_operation, other in earlier:
            other_epoch, other_code, other_instruction = other
            # Copies have clocks of their own; the advice is about the threads that started them.
            reach = _reach(epoch.thread.issuer, other_epoch.thread.issuer)
            under_way = isinstance(other_epoch.thread, CopyClock)

            # `Collector.add` calls it at once, if at all: for the first of many equal events. The defaults keep the
            # loop's variables of this turn.
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

            # With `reach`: two lines may race within a warp and between blocks, and the collector keeps the wider race.
            where = id(code), instruction, id(other_code), other_instruction
            event = "race", buffer.name, *where, reach, under_way
            # Only beside another write: a read or an atomic shows in which order the two came.
            benign = same_value and other_operation == "write"
            self._collector.add(event, (code, other_code), make, benign, reach)

    def _named(self, operation: str, access: Access) -> str:
        """Return the operation of an access as a report names it: a write by an asynchronous copy is a "copy"."""
        _, code, instruction = access
        return "copy" if operation == "write" and (id(code), instruction) in self._copying else operation

    def _race(
        self, one: tuple[str, Access], other: tuple[str, Access], buffer: Buffer, address: int, reach: int
    ) -> Finding:
        """Return the finding of a race, with its two accesses in the order of their lines.

        If a barrier stands between the lines, the race is with the next turn of a loop, and the order is reversed.
        """
        line = self._signal(one[1], other[1], address, reach)
        signal = None if line is None else (act_of(*one), line)
        # By lines from here on, so that every schedule gives the same finding; `_signal` needed the order in time.
        one, other = sorted((one, other), key=lambda side: (act_of(*side).line or 0, side[0]))
        first, second = act_of(*one), act_of(*other)
        code, other_code = one[1].code, other[1].code
        barriers = [
            line_of(its_code, instruction).number
            for (_, instruction, its_reach), its_code in self._passed.items()
            # Lines of one function can be compared, and a barrier for fewer threads than these two orders nothing.
            if its_code is code is other_code and its_reach >= reach
        ]
        # A barrier between the lines has ordered them within a turn, so the race is with the loop's next turn.
        next_turn = any((first.line or 0) < line < (second.line or 0) for line in barriers)
        # A line such as `s[i] = s[i + 1]` reads and writes: in a loop without a barrier two turns of it meet.
        in_loop = (
            first.line == second.line
            and first.operation != second.operation
            and buffer.space == "shared"
            and loop_without_barrier(code, first.line or 0, barriers)
        )
        if next_turn or in_loop:
            first, second = second, first
        extent = self._watch.cuda.blockDim
        if in_loop and extent.x * extent.y * extent.z > WARP_SIZE:
            reach = max(reach, BLOCK)  # some threads may stay in the loop longer than others: syncwarp is too little
        advice = against_race(first, second, reach, next_turn, in_loop, signal)
        return Finding("race", buffer.name, buffer.space, index_of(buffer, address), first, second, advice)

    def _signal(self, earlier: Access, later: Access, address: int, reach: int) -> int | None:
        """Return the line of the atomic by which `earlier`'s thread signals to `later`'s without a fence, or None.

        Within a block the two threads must use atomics at different lines: threads that execute the same atomic, such
        as a counter's, do not signal to each other.
        """
        epoch, code, _ = earlier
        mine, theirs = epoch.thread, later.epoch.thread
        line = line_of(earlier.code, earlier.instruction).number
        # The atomics from which the later thread may have learned: its own, and those that happened before it.
        heard = [
            (at, access)
            for at, access in theirs.block.signals.values()
            if at != address and (access.epoch.thread is theirs or before(access.epoch, later.epoch))
        ]
        found = []
        for at, told in mine.block.signals.values():
            number = line_of(told.code, told.instruction).number
            if told.epoch.thread is mine:
                # A signal counts if it can come after the access: below it, in another function, or in the same loop.
                follows = told.code is not code or number >= line or in_one_loop(code, line, number)
            else:
                follows = before(epoch, told.epoch)
            heard_there = [by for there, by in heard if there == at]
            if follows and any(reach >= CLUSTER or not by.same_instruction(told) for by in heard_there):
                found.append(number)
        # The first atomic below the access, or else the first one in the loop's next turn.
        return min(found, key=lambda number: (number < line, number), default=None)


def _in_doubt(reading: str, garbage: Access, operation: str, access: Access) -> bool:
    """Return whether `garbage`, a read or an atomic of garbage, comes after `access` in another schedule.

    The race is its cause then. A barrier between `garbage` and the race leaves no doubt.
    """
    # An atomic's outcome counts as written for reads, but not for other atomics (`Elements.note_atomic`).
    writes = operation == "write" or (operation == "atomic" and reading == "read")
    return writes and not before(garbage.epoch, access.epoch)


def _reach(one: ThreadClock, other: ThreadClock) -> int:
    """Return the smallest group that two threads are in."""
    if one.block is other.block:
        if one.warp == other.warp:
            return WARP
        # 0 is no team: threads that have met at no team's barrier have only the block's in common.
        return TEAM if one.team == other.team > 0 else BLOCK
    return CLUSTER if one.block.cluster is other.block.cluster else GRID
