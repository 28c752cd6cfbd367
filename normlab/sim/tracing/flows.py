"""Who gets a value from whom: the flows between the threads of one block, step by step, for the picture of a tree.

A step ends where threads meet: each thread counts the warp operations and barriers it has passed, and those who meet
go on with the same count. Only the first block that runs is watched, and only its first 20,000 flows are kept.
"""

from typing import Any, NamedTuple

from normlab.sim.observe import Buffer
from normlab.sim.tracing.request import Line
from normlab.sim.warp import SOURCES

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
        """Watch the block of the first thread that does anything."""
        self.flows: list[Flow] = []
        self.barriers: list[int] = []  # the steps that begin with a block barrier
        self.threads = 0
        self.full = False
        self._block: Any = None
        self._step: dict[Any, int] = {}
        self._number: dict[Any, int] = {}
        self._writer: dict[int, tuple[Any, int]] = {}  # shared address → who wrote it, in which step

    def watches(self, thread: Any) -> bool:
        """Return whether the flows of `thread` are noted."""
        if self._block is None:
            self._block = thread.block
            self.threads = len(thread.block.threads)
            self._number = {other: number for number, other in enumerate(thread.block.threads)}
            self._step = dict.fromkeys(self._number, 0)
        return thread.block is self._block and not self.full

    def access(self, thread: Any, buffer: Buffer, address: int, operation: str, line: Line) -> None:
        """Hear of an access to memory; shared memory carries values from thread to thread."""
        if buffer.space != "shared":
            return
        if operation != "st" and address in self._writer:
            writer, step = self._writer[address]
            if writer is not thread:
                self._add(writer, thread, step, self._step[thread], buffer.name, line)
        if operation != "ld":
            self._writer[address] = thread, self._step[thread]

    def meeting(self, group: list[Any], line: Line) -> None:
        """Hear of a warp operation: all its lanes are in the same step afterwards; a shuffle carries values."""
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

    def forget_threads(self) -> None:
        """Let go of the threads, which are of no use after the launch."""
        self._block = self._step = self._number = self._writer = None  # type: ignore[assignment]
        self.full = True

    def _add(self, source: Any, target: Any, start: int, end: int, by: str, line: Line) -> None:
        self.flows.append(Flow(self._number[source], self._number[target], start, end, by, line))
        self.full = len(self.flows) >= LIMIT
