"""Find locks that threads take in opposite orders, whether or not the run came to the deadlock.

A thread has taken a lock when a compare-and-swap or an exchange that decides a waiting loop has changed the lock's
element. It holds the lock until it changes the element again. If a thread takes lock B while it holds A, A comes before
B. A circle in this order is a possible deadlock: each thread of the circle may get its first lock, and then all wait.

A circle whose threads can never wait at the same time does not count (`_at_once`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from normlab.sim.language.spins import in_spin
from normlab.sim.machine.observed import Buffer
from normlab.sim.sanitizing.bounds import index_of
from normlab.sim.sanitizing.clocks import Access, BlockClock, ThreadClock
from normlab.sim.sanitizing.collector import Collector, act_of
from normlab.sim.sanitizing.findings import Finding

GROUPS = 8  # kept for each pair of locks
KEPT = 4  # kept of each group


class Lock(NamedTuple):
    """A lock that a thread holds: its element, and where the thread took it."""

    buffer: Buffer
    address: int
    access: Access

    def __str__(self) -> str:
        """Return the element's name, such as locks[3]."""
        return f"{self.buffer.name}[{', '.join(map(str, index_of(self.buffer, self.address)))}]"


class Nested(NamedTuple):
    """A thread took `inner` while it held `outer`, and the locks at the addresses `around`, too."""

    outer: Lock
    inner: Lock
    around: frozenset[int]

    @property
    def thread(self) -> ThreadClock:
        """The thread that took them."""
        return self.inner.access.epoch.thread

    @property
    def phase(self) -> int:
        """How many barriers its block had passed when the thread took `inner`."""
        return self.inner.access.epoch.phase


Group = tuple[BlockClock, frozenset[int]]  # the block whose threads take a pair of locks, and the locks around it


class Locks:
    """The locks that threads hold, and the order in which locks were taken."""

    def __init__(self, collector: Collector):
        """Add to `collector`."""
        self._collector = collector
        self.held: dict[ThreadClock, dict[int, Lock]] = {}  # by address, in the order in which they were taken
        # By the outer lock's address and the inner one's; then by the block and the locks around.
        self._nested: dict[int, dict[int, dict[Group, list[Nested]]]] = {}

    def changed(self, buffer: Buffer, address: int, access: Access) -> None:
        """Take note that an atomic has changed an element: it may take a lock, or give one back."""
        thread = access.epoch.thread
        held = self.held.get(thread, {})
        # Any change by the holder counts as giving back: an exchange, a subtraction, a plain store (`Elements`).
        if address in held:
            self.stored(thread, address)
        # Only where the atomic decides a loop that just waits: a counter's add changes its element, too, but no lock.
        elif in_spin(access.code, access.instruction):
            lock = Lock(buffer, address, access)
            for outer in held.values():
                self._nest(Nested(outer, lock, frozenset(held) - {outer.address}))
            self.held.setdefault(thread, {})[address] = lock

    def stored(self, thread: ThreadClock, address: int) -> None:
        """Take note that a thread changes an element: a lock that it holds there is free."""
        held = self.held.get(thread)
        # A thread without locks leaves the table: while the table is empty, plain stores skip this call (elements.py).
        if held is not None and held.pop(address, None) is not None and not held:
            del self.held[thread]

    def forget(self) -> None:
        """Forget the order: a grid sync has kept everything before it apart from everything after it."""
        self._nested.clear()

    def _nest(self, new: Nested) -> None:
        """Report the circle that a new pair closes, and keep the pair."""
        circle = next(self._circles([new], {new.outer.address, new.inner.address}), None)
        if circle is not None:
            self._report(circle)
        groups = self._nested.setdefault(new.outer.address, {}).setdefault(new.inner.address, {})
        thread, phase = new.thread, new.phase
        group = thread.block, new.around
        if group not in groups and len(groups) == GROUPS:
            return
        kept = groups.setdefault(group, [])
        # A thread that takes both locks in a loop is kept once in a phase, so that it does not push out other threads.
        if any(one.thread is thread and one.phase == phase for one in kept):
            return
        # The block's next pairs meet only those of its latest phase. To other blocks all its phases are the same.
        if len(kept) == KEPT and kept[0].phase < phase:
            del kept[0]
        if len(kept) < KEPT:
            kept.append(new)

    def _circles(self, chain: list[Nested], seen: set[int]) -> Iterator[list[Nested]]:
        """Yield chains of pairs that begin with `chain` and come back to its first lock; `seen`: locks on the way."""
        for address, groups in self._nested.get(chain[-1].inner.address, {}).items():
            pairs = (one for kept in groups.values() for one in kept)
            fitting = next((one for one in pairs if all(_at_once(one, other) for other in chain)), None)
            if fitting is None:
                continue
            if address == chain[0].outer.address:
                yield [*chain, fitting]
            elif address not in seen:  # each lock once, so that the search is as long as the order of the locks
                seen.add(address)
                yield from self._circles([*chain, fitting], seen)

    def _report(self, circle: list[Nested]) -> None:
        first, last = circle[0], circle[-1]
        # The same mistake by other threads, at other elements, is the same finding: it is known by its lines.
        accesses = [lock.access for one in circle for lock in (one.outer, one.inner)]
        lines = frozenset((id(access.code), access.instruction) for access in accesses)

        def make() -> Finding:
            orders = ", ".join(f"{one.outer} before {one.inner}" for one in circle)
            advice = (
                f"{len(circle)} threads take locks in a circle, {orders}: each may hold one and wait for the next for "
                "ever; let all threads take them in one order, such as by ascending index"
            )
            acts = act_of("atomic", first.inner.access), act_of("atomic", last.inner.access)
            index = index_of(first.inner.buffer, first.inner.address)
            return Finding("lock-order", first.inner.buffer.name, first.inner.buffer.space, index, *acts, advice)

        keep: Any = [access.code for access in accesses]
        self._collector.add(("lock-order", lines), keep, make)


def _at_once(one: Nested, other: Nested) -> bool:
    """Return whether two threads may be inside their outer locks at the same time."""
    # A thread does not wait for itself, and a lock that both hold around their pairs lets one of them in at a time.
    if one.thread is other.thread or one.around & other.around:
        return False
    # A thread that waits for its inner lock keeps the block from its next barrier: two that wait are in one phase.
    apart = one.thread.block is other.thread.block and one.phase != other.phase
    return not apart
