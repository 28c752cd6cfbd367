"""What happens before what: the clocks of threads and blocks.

A full vector clock has an entry for every thread of the grid. These clocks are coarser, because CUDA's threads
synchronise in groups: a barrier ends a block's `phase`, and a warp operation, a fence or an atomic advances a thread's
`time`. All accesses of a thread between two such moments share one `Epoch`. The comparison of two accesses is exact:
`tests/sim/sanitizing/test_clocks.py` compares it with reachability in the graph of all events. `shadow.py` decides
which accesses are kept to be compared.

A `threadfence` takes a snapshot of everything that happened before it: the thread's own accesses and, through earlier
barriers, those of its block. Every later atomic of the thread leaves the snapshot at its address, and the next thread
that accesses the address takes it. Three rules keep to what working programs do:

- The thread that takes needs no fence. The PTX model asks for one, but NVIDIA's own threadFenceReduction has none.
- The fence may be another thread's: `threadfence(); syncthreads()` and then an atomic by thread 0 is common.
- A plain store to a flag passes on as much as an atomic. The race on the flag is reported by itself, and would
  otherwise be repeated for everything that the flag guards.

Source: Flanagan and Freund, FastTrack: efficient and precise dynamic race detection, PLDI 2009; PTX ISA, memory
consistency model, causality order.
"""

from bisect import bisect_left
from collections.abc import Iterable
from types import CodeType
from typing import Any, NamedTuple


class Known(NamedTuple):
    """What happened before: accesses in phases of a block, or at times of a thread, below a number.

    `phases`: block → number. A cluster is among the keys, with how often its barrier has been passed: what its threads
    did before that many arrivals happened before. `journals`: what was left at an address, as the number of facts read
    there. The facts themselves are not copied, because a journal may hold facts about thousands of threads.
    """

    phases: dict[Any, int]
    times: dict["ThreadClock", int]
    journals: dict["Journal", int]


NOTHING = Known({}, {}, {})


class BlockClock:
    """The barriers that a block has passed."""

    __slots__ = ("cluster", "fenced", "index", "known", "phase", "signals", "threads")

    def __init__(self, index: tuple[int, int, int], cluster: Any = None):
        """Start before the first barrier; `cluster`: the one that the block is in."""
        self.index, self.cluster = index, cluster
        self.phase = 0
        self.known = self.fenced = NOTHING  # what all its threads knew, and had fenced, at the last barrier
        self.threads: list[ThreadClock] = []  # those that have accessed memory or met others, returned ones too
        self.signals: dict[tuple, tuple[int, Access]] = {}  # thread and instruction → its last atomic and the address


class ThreadClock:
    """What one thread knows to have happened before, and which part of it a fence lets its atomics pass on.

    An atomic passes `fenced` on to every thread, and `fenced_for_block`, which holds `fenced`, to its own block.
    """

    __slots__ = (
        *("arrivals", "block", "epoch", "fenced", "fenced_for_block", "index", "known", "lane", "team", "time", "warp"),
    )

    def __init__(self, block: BlockClock, warp: int, lane: int, index: tuple[int, int, int]):
        """Start with what the block knows."""
        self.block, self.warp, self.lane, self.index = block, warp, lane, index
        self.time = self.arrivals = 0
        self.team = 0  # the number of the team's barrier that it passed last
        self.known, self.fenced, self.fenced_for_block = block.known, block.fenced, block.fenced
        self.epoch: Epoch | None = None
        block.threads.append(self)

    @property
    def issuer(self) -> "ThreadClock":
        """The thread itself; a `CopyClock` returns the thread that started the copies."""
        return self

    def now(self) -> "Epoch":
        """Return the thread's current epoch; begin one if none has begun."""
        if self.epoch is None:
            self.epoch = Epoch(self)
        return self.epoch

    def end_epoch(self) -> None:
        """Begin a new epoch at the next access, because the thread has learned or passed on something."""
        if self.epoch is not None:
            self.epoch.accesses.clear()  # they point back to the epoch: no cycle is left, so memory is freed at once
            self.epoch = None


class CopyClock(ThreadClock):
    """The clock of a thread's asynchronous copies while they are under way: no other clock is ordered with it.

    The copies have a block of their own, so no barrier orders them. A copy that has arrived counts as a write by the
    thread itself at the moment in which it waited for the copy.
    """

    __slots__ = ("_issuer",)

    def __init__(self, issuer: ThreadClock):
        """Copy for `issuer`."""
        super().__init__(BlockClock(issuer.block.index), issuer.warp, issuer.lane, issuer.index)
        self._issuer = issuer

    @property
    def issuer(self) -> ThreadClock:
        """The thread that started the copies."""
        return self._issuer


class Epoch:
    """A part of one thread's run in which the thread neither learns nor passes on anything."""

    __slots__ = ("accesses", "arrivals", "known", "phase", "thread", "time")

    def __init__(self, thread: ThreadClock):
        """Begin with what `thread` knows now."""
        self.thread, self.time, self.phase, self.known = thread, thread.time, thread.block.phase, thread.known
        self.arrivals = thread.arrivals
        self.accesses: dict[int, Access] = {}  # by instruction


Access = tuple[Epoch, CodeType, int]  # the thread and when, the code of its function, and the instruction in that


def before(earlier: Epoch, later: Epoch) -> bool:
    """Return whether the accesses of `earlier` happened before those of `later`, the current epoch of its thread."""
    thread, known = earlier.thread, later.known
    return (
        thread is later.thread
        or known.phases.get(thread.block, 0) > earlier.phase
        or known.times.get(thread, 0) > earlier.time
        or known.phases.get(thread.block.cluster, 0) > earlier.arrivals
        or _told(earlier, known.journals)
    )


def _told(earlier: Epoch, journals: dict["Journal", int]) -> bool:
    """Return whether a journal, up to its length, or one that it refers to says that `earlier` happened before."""
    asked: dict[Journal, int] = {}  # the longest part of each that was looked into
    rest = list(journals.items())
    while rest:
        journal, length = rest.pop()
        if asked.get(journal, 0) < length:
            asked[journal] = length
            if journal.tells(earlier, length):
                return True
            rest.extend((other, journal.latest(other, length)) for other in journal.others)
    return False


def union(portions: Iterable[Known]) -> Known:
    """Return everything that at least one of `portions` knows."""
    different = {id(known): known for known in portions if known is not NOTHING}
    if len(different) < 2:
        return next(iter(different.values()), NOTHING)
    parts = [_latest(tables) for tables in zip(*different.values(), strict=True)]
    for known in different.values():
        # One portion holds all others: return that object, so that the caller sees by `is` that nothing is new.
        if all(table is part for table, part in zip(known, parts, strict=True)):
            return known
    return Known(*parts)


def _latest(parts: tuple[dict, ...]) -> Any:
    """Return the largest number under every key: the largest of `parts`, copied only if another one adds to it."""
    largest = max(parts, key=len)
    found = largest
    for part in parts:
        if part is not largest:
            for key, number in part.items():
                if found.get(key, 0) < number:
                    if found is largest:
                        found = largest.copy()
                    found[key] = number
    return found


def pass_barrier(block: BlockClock) -> None:
    """Let every thread of a block know what all its threads know. A thread that has returned counts as arrived."""
    block.phase += 1
    known = union([block.known, *(thread.known for thread in block.threads)])
    # The block's new phase covers every time of its own threads: only those of other blocks are kept.
    others = {thread: time for thread, time in known.times.items() if thread.block is not block}
    block.known = Known({**known.phases, block: block.phase}, others, known.journals)
    block.fenced = union([block.fenced, *(thread.fenced for thread in block.threads)])
    _adopt(block)


def pass_grid_sync(blocks: Iterable[BlockClock]) -> None:
    """Let every thread of the grid know everything. No clock lists what came before: the shadows forget it."""
    for block in blocks:
        block.phase += 1
        block.known, block.fenced = Known({block: block.phase}, {}, {}), NOTHING
        _adopt(block)


def _adopt(block: BlockClock) -> None:
    """Give every thread of a block what the block knows."""
    for thread in block.threads:
        thread.known, thread.fenced, thread.fenced_for_block = block.known, block.fenced, block.fenced
        thread.end_epoch()


class Gathering:
    """A cluster's barrier: threads leave what they know when they arrive, and take what all have left after waiting."""

    __slots__ = ("_arrived", "_brought", "_taken", "meetings")

    def __init__(self) -> None:
        """Start before the first arrival."""
        self.meetings = 0
        self._arrived: dict[ThreadClock, tuple[Known, Known, Known]] = {}  # by the threads that have not waited yet
        self._brought: list[tuple[Known, Known, Known]] = []
        self._taken = NOTHING, NOTHING, NOTHING

    def arrive(self, thread: ThreadClock) -> None:
        """Leave what a thread knows. What the thread does from now on belongs to the barrier's next phase."""
        self._arrived[thread] = thread.known, thread.fenced, thread.fenced_for_block
        self._brought.append(self._arrived[thread])
        thread.arrivals += 1
        thread.end_epoch()

    def meet(self, cluster: Any) -> None:
        """Unite what all threads have left, and add that the barrier has been passed once more."""
        self.meetings += 1
        known, fenced, fenced_for_block = (union(parts) for parts in zip(*self._brought, strict=True))
        known = Known({**known.phases, cluster: self.meetings}, known.times, known.journals)
        self._taken, self._brought = (known, fenced, fenced_for_block), []

    def take(self, thread: ThreadClock) -> None:
        """Let a thread that has waited know what all threads have left."""
        now = thread.known, thread.fenced, thread.fenced_for_block
        thread.known, thread.fenced, thread.fenced_for_block = (
            # `taken` holds what the thread brought: a union is needed only if it has learned more since.
            taken if own is brought else union((own, taken))
            for own, brought, taken in zip(now, self._arrived.pop(thread), self._taken, strict=True)
        )
        thread.end_epoch()


def meet(threads: list[ThreadClock]) -> None:
    """Let threads that have met in a warp operation, or at a team's barrier, know what each of them knows."""
    known = union(thread.known for thread in threads)
    times = known.times.copy()
    for thread in threads:
        thread.time += 1
        times[thread] = thread.time
    known = Known(known.phases, times, known.journals)
    fenced = union(thread.fenced for thread in threads)
    fenced_for_block = union(thread.fenced_for_block for thread in threads)
    for thread in threads:
        thread.known, thread.fenced, thread.fenced_for_block = known, fenced, fenced_for_block
        thread.end_epoch()


def fence(thread: ThreadClock, for_block_only: bool) -> None:
    """Let the thread's later atomics pass on everything that it has done and knows now."""
    thread.time += 1
    known = thread.known
    thread.fenced_for_block = Known(known.phases, {**known.times, thread: thread.time}, known.journals)
    if not for_block_only:
        thread.fenced = thread.fenced_for_block
    thread.end_epoch()


class Journal:
    """All facts ever left at an address, in the order in which they came.

    A fact says that a block has reached a phase, a thread a time, or another journal a length. A thread that takes the
    facts remembers only how many it took, and so does a journal that refers to another one. Thus a lock or a counter
    that every thread of a grid passes costs each thread the same, however many threads came before.

    Most journals belong to one thread that signals alone: what it left is kept whole and not written out as facts.
    """

    __slots__ = ("_facts", "_only", "_where", "others")

    def __init__(self) -> None:
        """Start empty."""
        self._only: tuple[ThreadClock, Known] | None = None  # the only thread that has left something, and what it left
        self._facts = 0  # how many there are
        # Block, thread or journal → the numbers told of it, which grow, and the position of each among the facts.
        self._where: dict[Any, tuple[list[int], list[int]]] = {}
        self.others: list[Journal] = []  # the keys that are journals

    def tells(self, earlier: Epoch, length: int) -> bool:
        """Return whether the first `length` facts say that `earlier` happened before, without other journals' facts."""
        thread = earlier.thread
        return (
            self.latest(thread.block, length) > earlier.phase
            or self.latest(thread, length) > earlier.time
            or self.latest(thread.block.cluster, length) > earlier.arrivals
        )

    def latest(self, key: Any, length: int) -> int:
        """Return the largest number that the first `length` facts tell of a block, thread or journal, else 0."""
        if key not in self._where:
            return 0
        numbers, positions = self._where[key]
        return numbers[bisect_left(positions, length) - 1]

    def add(self, thread: ThreadClock, known: Known) -> None:
        """Leave what `thread` has fenced; write facts once a second thread has left something."""
        if not self._facts:
            if self._only is None or self._only[0] is thread:
                self._only = thread, known
                return
            self._extend(self._only[1])
            self._only = None
        self._extend(known)

    def _extend(self, known: Known) -> None:
        """Append what is new in `known` as facts."""
        self.others += [journal for journal in known.journals if journal not in self._where]
        for table in known:
            for key, number in table.items():
                numbers, positions = self._where.setdefault(key, ([0], [-1]))
                if numbers[-1] < number:
                    numbers.append(number)
                    positions.append(self._facts)
                    self._facts += 1

    def learned_by(self, thread: ThreadClock) -> Known:
        """Return what `thread` knows once it has taken the facts: the same object as before if nothing is new."""
        known = thread.known
        if self._only is not None:
            return known if self._only[0] is thread else union((known, self._only[1]))
        if known.journals.get(self, 0) == self._facts:
            return known
        return Known(known.phases, known.times, {**known.journals, self: self._facts})


class Left:
    """What atomics have left at an address: for every thread, and for the threads of one block."""

    __slots__ = ("for_all", "for_block")

    def __init__(self) -> None:
        """Start with nothing."""
        self.for_all = Journal()
        self.for_block: dict[BlockClock, Journal] = {}

    def leave(self, thread: ThreadClock) -> None:
        """Pass on what `thread` has fenced."""
        if thread.fenced is not NOTHING:
            self.for_all.add(thread, thread.fenced)
        if thread.fenced_for_block is not thread.fenced:
            if thread.block not in self.for_block:
                self.for_block[thread.block] = Journal()
            self.for_block[thread.block].add(thread, thread.fenced_for_block)

    def take(self, thread: ThreadClock) -> None:
        """Let `thread` know what was left here."""
        for journal in (self.for_all, self.for_block.get(thread.block)):
            if journal is not None:
                known = journal.learned_by(thread)
                if known is not thread.known:
                    thread.known = known
                    thread.end_epoch()
