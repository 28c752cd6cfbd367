"""Follow a cluster's barrier, at which threads learn what other threads know (clocks.py)."""

from typing import Any

from normlab.sim.sanitizing.clocks import NOTHING, Known, ThreadClock, union


class Gathering:
    """A cluster's barrier, which a thread passes in two steps: it arrives, does other work, and then waits.

    A thread brings what it knows when it arrives. After its wait it learns what all threads brought.
    """

    __slots__ = ("_arrived", "_brought", "_taken", "meetings")

    def __init__(self) -> None:
        """Start before the first arrival."""
        self.meetings = 0
        # Every triple: known, fenced, fenced_for_block.
        self._arrived: dict[ThreadClock, tuple[Known, Known, Known]] = {}  # what each thread brought, until its wait
        self._brought: list[tuple[Known, Known, Known]] = []  # since the barrier was last passed
        self._taken = NOTHING, NOTHING, NOTHING  # the union of all triples brought to the last passing

    def arrive(self, thread: ThreadClock) -> None:
        """Keep what `thread` knows for the other threads. Its later accesses count for the barrier's next passing."""
        self._arrived[thread] = thread.known, thread.fenced, thread.fenced_for_block
        self._brought.append(self._arrived[thread])
        thread.arrivals += 1
        thread.end_epoch()

    def meet(self, cluster: Any) -> None:
        """Unite what all threads brought, and count that the barrier has been passed once more."""
        self.meetings += 1
        known, fenced, fenced_for_block = (union(parts) for parts in zip(*self._brought, strict=True))
        # Each thread has arrived once per meeting, so everything before its arrival number `meetings` is known now.
        known = Known({**known.phases, cluster: self.meetings}, known.times, known.journals)
        self._taken, self._brought = (known, fenced, fenced_for_block), []

    def take(self, thread: ThreadClock) -> None:
        """Let `thread`, which has waited, know what all threads brought."""
        now = thread.known, thread.fenced, thread.fenced_for_block
        thread.known, thread.fenced, thread.fenced_for_block = (
            # `taken` includes what the thread brought. A union is needed only if the thread has learned more since.
            taken if own is brought else union((own, taken))
            for own, brought, taken in zip(now, self._arrived.pop(thread), self._taken, strict=True)
        )
        thread.end_epoch()
