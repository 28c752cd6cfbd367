"""Record which thread gets a value from which other thread, step by step; `draw_tree` draws it.

A step ends where threads meet: each thread counts the warp operations and barriers that it has passed, and the threads
that meet go on with the same count. Only the first block that runs is watched, and its first 20,000 flows are kept.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from normlab.sim.language.source import Line

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
    """The flows and meetings of one block. A thread is its number in the block."""

    def __init__(self) -> None:
        """Watch the first block that begins."""
        self.flows: list[Flow] = []
        self.barriers: list[int] = []  # the steps that begin with a block barrier
        self.threads = 0
        self.block: Any = None  # the watched one
        self._step: list[int] = []  # of each thread
        self._writer: dict[int, tuple[int, int]] = {}  # shared address → the thread that wrote it, and in which step

    def begin(self, block: Any, threads: int) -> None:
        """Watch `block`, whose threads have not run yet, unless another block is watched already."""
        # Only once: `threads` stays set after the block has ended.
        if not self.threads:
            self.block, self.threads = block, threads
            self._step = [0] * threads

    def access(self, thread: int, name: str, address: int, operation: str, line: Line) -> None:
        """Record an access to shared memory: a load takes the value that another thread has stored."""
        # A value goes from the thread that stored last to every thread that loads it; an atomic loads and stores.
        if operation in ("ld", "atom") and address in self._writer:
            writer, step = self._writer[address]
            if writer != thread:
                self._add(writer, thread, step, self._step[thread], name, line)
        if operation != "ld":
            self._writer[address] = thread, self._step[thread]

    def meeting(self, group: list[int], line: Line, moves: Iterable[tuple[int, int]] = ()) -> None:
        """Record a warp operation or a team's barrier: its threads go on in one step.

        `moves`: of a shuffle, (source, target) of each value.
        """
        # The slowest decides: no thread goes on before the last has come.
        step = max(self._step[thread] for thread in group) + 1
        for source, target in moves:
            if source != target:
                self._add(source, target, step - 1, step, "shuffle", line)
        for thread in group:
            self._step[thread] = step

    def barrier(self, arrived: list[int]) -> None:
        """Record a block barrier: all threads go on in the same step."""
        step = max(self._step[thread] for thread in arrived) + 1
        self.barriers.append(step)
        for thread in arrived:
            self._step[thread] = step

    def end(self) -> None:
        """Stop watching, and forget the threads."""
        self.block = None
        self._step.clear()
        self._writer.clear()

    def _add(self, source: int, target: int, start: int, end: int, by: str, line: Line) -> None:
        self.flows.append(Flow(source, target, start, end, by, line))
        # A picture of more arrows is black, and the list would grow with the kernel's run time.
        if len(self.flows) >= LIMIT:
            self.block = None
