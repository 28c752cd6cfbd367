"""Model how many warps hide the latency of a recorded warp's instructions.

This is a model, not a measurement. A multiprocessor has four schedulers. Each issues one instruction per cycle, of a
warp that is ready. The model has one scheduler, whose warps all run the recorded statements of one warp. A statement
issues its instructions, and the warp's next statement waits for the slowest of them. Little's law is the estimate
beside it: a warp that issues I instructions in T cycles leaves room for T / I warps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

from normlab.sim.language.source import Line
from normlab.sim.tracing.play.data import Recording, Step

MOST_WARPS = 16  # of a scheduler: a multiprocessor of compute capability 8.0 or 9.0 has four, and room for 64 warps


@dataclass(frozen=True)
class Latencies:
    """Cycles from an instruction's issue to its result.

    The defaults are round numbers of the size that microbenchmarks of Hopper report for memory that is not busy (Luo
    et al., arXiv:2402.13499). Under load global memory takes longer: the 0.7 microseconds of tutorial 12 are 1,400
    cycles of an H200. Give those of your GPU.
    """

    arithmetic: int = 4
    shuffle: int = 25
    barrier: int = 20
    shared: int = 30
    memory: int = 500

    def __post_init__(self) -> None:
        """Raise ValueError for a latency below 1."""
        for name, cycles in vars(self).items():
            if cycles < 1:
                raise ValueError(f"a latency is at least 1 cycle, and {name} is {cycles}")


@dataclass(frozen=True)
class Instruction:
    """A statement in the model: the `slots` that it issues, the cycles that the next one waits, and for what."""

    line: Line
    slots: int
    wait: int
    kind: str  # a field of Latencies
    meets: bool  # a barrier, where all warps wait for the last


@dataclass(frozen=True)
class Schedule:
    """`warps` warps of one scheduler: `starts[warp][n]` is the cycle in which instruction n begins to issue."""

    starts: list[list[int]] = field(repr=False)
    cycles: int
    busy: float  # share of the cycles in which the scheduler issues

    @property
    def warps(self) -> int:
        """How many warps there are."""
        return len(self.starts)


@dataclass(frozen=True)
class Latency:
    """The model's results for 1, 2, … warps of one scheduler.

    `instructions`: those of the recorded warp. `needed`: how many warps keep a scheduler busy, by Little's law.
    """

    instructions: list[Instruction] = field(repr=False)
    schedules: list[Schedule] = field(repr=False)
    needed: int

    def __str__(self) -> str:
        """Return the result in words."""
        alone, last = self.schedules[0], self.schedules[-1]
        issued = sum(one.slots for one in self.instructions)
        slowest = max(self.instructions, key=lambda one: one.wait)
        # Little's law may ask for more warps than fit: then the GPU cannot hide all waits.
        held = f"a scheduler holds {MOST_WARPS} at most"
        if self.needed <= MOST_WARPS:
            held = f"that is no more than the {MOST_WARPS} that a scheduler holds"
        return (
            f"A model, not a measurement. One warp issues {issued:,} instructions in {alone.cycles:,} cycles; its "
            f"longest wait is for {NAMES[slowest.kind]} of line {slowest.line.number}, {slowest.wait} cycles. "
            f"By Little's law {alone.cycles:,} / {issued:,} = {alone.cycles / issued:.1f} warps, so {self.needed}, "
            f"would hide all waits; {held}. "
            f"With {last.warps} the scheduler issues in {last.busy:.0%} of the cycles, with 1 in {alone.busy:.0%}."
        )


NAMES = {
    "arithmetic": "the arithmetic",
    "shuffle": "the shuffle",
    "barrier": "the barrier",
    "shared": "the shared memory",
    "memory": "the global memory",
}


def latency(recording: Recording, latencies: Latencies, warp: int | None = None) -> Latency:
    """Return the model's results for the warp number `warp`; None: for that with the most steps.

    Raises ValueError for a warp that the block does not have.
    """
    if warp is None:
        counts = [sum(step.warp == one for step in recording.steps) for one in range(len(recording.lanes))]
        warp = counts.index(max(counts))
    if not 0 <= warp < len(recording.lanes):
        raise ValueError(f"the block has the warps 0 to {len(recording.lanes) - 1}, and no {warp}")
    instructions = [_instruction(step, recording, latencies) for step in recording.steps if step.warp == warp]
    issued = sum(one.slots for one in instructions)
    # Little's law. By it more warps than `needed` find no free cycle, so the schedules end there, or with as many as a
    # scheduler holds.
    needed = ceil(schedule(instructions, 1).cycles / issued)
    schedules = [schedule(instructions, warps) for warps in range(1, min(needed, MOST_WARPS) + 1)]
    return Latency(instructions, schedules, needed)


def _instruction(step: Step, recording: Recording, latencies: Latencies) -> Instruction:
    """Return a step as the model sees it."""
    operation = next((recording.meetings[meeting].operation for meeting in step.meetings), "")
    # Warp operations are shfl_xor_sync, ballot_sync and so on; cluster_sync is named alike, and is a barrier of blocks.
    within_warp = operation == "syncwarp" or (operation.endswith("_sync") and operation != "cluster_sync")
    kinds = ["arithmetic"]
    if operation:
        kinds.append("shuffle" if within_warp else "barrier")
    for request in step.requests:
        # Nothing waits for a store, nor for an asynchronous copy: a kernel waits for its copies at a later statement.
        if request.operation in ("ld", "atom"):
            kinds.append("memory" if request.space == "global" else "shared")
    # The loads of one statement overlap, so the slowest decides. Those of two statements do not overlap in the model,
    # though a compiler may well move them together.
    kind = max(kinds, key=lambda name: getattr(latencies, name))
    # One instruction for each request and for the meeting. A statement without either has arithmetic, taken as one.
    slots = max(1, len(step.requests) + bool(operation))
    return Instruction(step.line, slots, getattr(latencies, kind), kind, bool(operation) and not within_warp)


def schedule(instructions: Sequence[Instruction], warps: int) -> Schedule:
    """Return when each of `warps` warps issues its instructions."""
    starts: list[list[int]] = [[] for _ in range(warps)]
    # A heap: of the warps that are ready, the one issues that has been ready for longest.
    ready = [(0, warp) for warp in range(warps)]
    waiting: list[int] = []  # the warps that stand at a barrier
    time = end = 0
    while ready:
        since, warp = heappop(ready)
        instruction = instructions[len(starts[warp])]
        # No warp is ready before `since`, so the scheduler may be idle until then.
        time = max(time, since)
        starts[warp].append(time)
        time += instruction.slots
        # The last slot is issued in cycle `time` - 1, and its result is there after `wait` more.
        then = time - 1 + instruction.wait
        end = max(end, then)
        together = [warp]
        if instruction.meets:
            # All warps wait for the last, whose `then` holds for all: it has issued latest. All run the same
            # statements, so all come to every barrier.
            waiting.append(warp)
            if len(waiting) < warps:
                continue
            together, waiting = waiting, []
        if len(starts[warp]) < len(instructions):
            for one in together:
                heappush(ready, (then, one))
    return Schedule(starts, end, warps * sum(one.slots for one in instructions) / end)
