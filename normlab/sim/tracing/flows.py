"""Flows: which thread gets a value from which, step by step, for the picture of a reduction's tree.

A step ends where threads meet: each thread counts the warp operations and barriers that it has passed, and the threads
that meet go on with the same count. Only the first block that runs is watched, and its first 20,000 flows are kept.
"""

from typing import Any, NamedTuple

from normlab.sim.language.source import Line
from normlab.sim.machine.observed import Buffer
from normlab.sim.machine.shuffles import SOURCES

LIMIT = 20_000


class Flow(NamedTuple):
    """A value on its way: thread `source` wrote or gave it in step `start`, `target` had it in step `end`."""

    source: int
    target: int
    start: int
    end: int
    by: str  # "shuffle", or the name of the shared array
    line: Line


class Flows:
    """The flows and meetings of one block."""

    def __init__(self) -> None:
        """Watch the first block that begins."""
        self.flows: list[Flow] = []
        self.barriers: list[int] = []  # the steps that begin with a block barrier
        self.threads = 0
        self.block: Any = None  # the watched one
        self._step: dict[Any, int] = {}
        self._number: dict[Any, int] = {}
        self._writer: dict[int, tuple[Any, int]] = {}  # shared address → the thread that wrote it, and in which step

    def begin(self, block: Any) -> None:
        """Hear of a block whose threads have not run yet."""
        if not self.threads:
            self.block, self.threads = block, len(block.threads)
            self._number = {thread: number for number, thread in enumerate(block.threads)}
            self._step = dict.fromkeys(self._number, 0)

    def access(self, thread: Any, buffer: Buffer, address: int, operation: str, line: Line) -> None:
        """Hear of an access to shared memory, which carries values from thread to thread."""
        if operation in ("ld", "atom") and address in self._writer:
            writer, step = self._writer[address]
            if writer is not thread:
                self._add(writer, thread, step, self._step[thread], buffer.name, line)
        if operation != "ld":
            self._writer[address] = thread, self._step[thread]

    def meeting(self, group: list[Any], line: Line) -> None:
        """Hear of a warp operation, or a team's barrier: all are in one step afterwards; a shuffle carries values."""
        step = max(self._step[thread] for thread in group) + 1
        operation = group[0].operation
        if operation in SOURCES:
            lanes = {thread.lane: thread for thread in group}
            for thread in group:
                source = lanes.get(SOURCES[operation](thread.lane, thread.given[1]))
                if source is not None and source is not thread:
                    self._add(source, thread, step - 1, step, "shuffle", line)
        for thread in group:
            self._step[thread] = step

    def barrier(self, arrived: list[Any]) -> None:
        """Hear of a block barrier: all threads are in the same step afterwards."""
        step = max(self._step[thread] for thread in arrived) + 1
        self.barriers.append(step)
        for thread in arrived:
            self._step[thread] = step

    def end(self) -> None:
        """Watch no longer, and let go of the threads."""
        self.block = None
        for known in (self._step, self._number, self._writer):
            known.clear()

    def _add(self, source: Any, target: Any, start: int, end: int, by: str, line: Line) -> None:
        self.flows.append(Flow(self._number[source], self._number[target], start, end, by, line))
        if len(self.flows) >= LIMIT:
            self.block = None
