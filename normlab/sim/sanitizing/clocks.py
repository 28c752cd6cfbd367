"""What happens before what: the clocks of threads and blocks.

A full vector clock has an entry for every thread of the grid. Here knowledge comes in the portions in which CUDA's
threads synchronise: a block at a barrier (a `phase` ends), a thread at a warp operation, a fence or an atomic (its
`time` goes on). Between two such moments all accesses of a thread have one `Epoch`. The test of two accesses is exact
(`tests/sim/sanitizing/test_clocks.py` holds it to reachability in the graph of all events); which accesses are kept
to be tested is the business of `shadow.py`, which thins them out.

An atomic passes on what its thread had fenced: a `threadfence` takes a snapshot of everything that happened before
it, for the thread's own accesses and, through earlier barriers, for its block's; the snapshot is left at the address
of every later atomic, and who accesses that address next has it. The side that acquires needs no fence here: the PTX
model wants one, but NVIDIA's own threadFenceReduction does without. Nor need the fence be the signalling thread's own:
`threadfence(); syncthreads()` and then an atomic by thread 0 is as common. A plain store to a flag passes on as much,
because the race on the flag is reported by itself and would only be repeated for all that it guards.

Source: Flanagan and Freund, FastTrack: efficient and precise dynamic race detection, PLDI 2009; PTX ISA, memory
consistency model, causality order.
"""

from bisect import bisect_left
from collections.abc import Iterable
from types import CodeType
from typing import Any, NamedTuple


class Known(NamedTuple):
    """What happened before: all accesses of a block in phases below a number, of a thread at times below a number.

    A cluster stands among the phases, with how often its barrier has been passed: what its threads did before as many
    arrivals happened before. And what lay at an address up to some length of its journal: not what that says, which
    may be of thousands.
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
        self.known = self.fenced = NOTHING  # of all its threads at the last barrier
        self.threads: list[ThreadClock] = []  # those that have done anything, returned ones too
        self.signals: dict[tuple, tuple[int, Access]] = {}  # by thread and instruction: its last atomic, and where


class ThreadClock:
    """What one thread knows, and what of it a fence has made fit to be passed on (`fenced` is part of the rest)."""

    __slots__ = (
        *("arrivals", "block", "epoch", "fenced", "fenced_for_block", "index", "known", "lane", "team", "time", "warp"),
    )

    def __init__(self, block: BlockClock, warp: int, lane: int, index: tuple[int, int, int]):
        """Know what the block knows."""
        self.block, self.warp, self.lane, self.index = block, warp, lane, index
        self.time = self.arrivals = 0
        self.team = 0  # the number of the team's barrier that it passed last
        self.known, self.fenced, self.fenced_for_block = block.known, block.fenced, block.fenced
        self.epoch: Epoch | None = None
        block.threads.append(self)

    @property
    def issuer(self) -> "ThreadClock":
        """The thread itself: see `CopyClock`."""
        return self

    def now(self) -> "Epoch":
        """Return the epoch that goes on."""
        if self.epoch is None:
            self.epoch = Epoch(self)
        return self.epoch

    def end_epoch(self) -> None:
        """Know more, or pass something on, from now on."""
        if self.epoch is not None:
            self.epoch.accesses.clear()  # which point back to it
            self.epoch = None


class CopyClock(ThreadClock):
    """Who writes the targets of a thread's asynchronous copies that are under way: nobody is ordered with it.

    It has a block of its own, so that no barrier lets others know it. What has arrived counts as written by the thread
    itself, when it waited.
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
    """A stretch of one thread's run in which it learns nothing and passes nothing on."""

    __slots__ = ("accesses", "arrivals", "known", "phase", "thread", "time")

    def __init__(self, thread: ThreadClock):
        """Begin now."""
        self.thread, self.time, self.phase, self.known = thread, thread.time, thread.block.phase, thread.known
        self.arrivals = thread.arrivals
        self.accesses: dict[int, Access] = {}  # by instruction


Access = tuple[Epoch, CodeType, int]  # when and by whom, and the instruction: its function's code and place there


def before(earlier: Epoch, later: Epoch) -> bool:
    """Return whether what was done in `earlier` happened before what is done in `later`, which goes on now."""
    thread, known = earlier.thread, later.known
    return (
        thread is later.thread
        or known.phases.get(thread.block, 0) > earlier.phase
        or known.times.get(thread, 0) > earlier.time
        or known.phases.get(thread.block.cluster, 0) > earlier.arrivals
        or _told(earlier, known.journals)
    )


def _told(earlier: Epoch, journals: dict["Journal", int]) -> bool:
    """Return whether one of some journals, up to a length, or of those that they mention, says so."""
    asked: dict[Journal, int] = {}
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
    """Return all that is known in one of `portions`."""
    different = {id(known): known for known in portions if known is not NOTHING}
    if len(different) < 2:
        return next(iter(different.values()), NOTHING)
    parts = [_latest(tables) for tables in zip(*different.values(), strict=True)]
    for known in different.values():
        if all(table is part for table, part in zip(known, parts, strict=True)):  # it says all: nothing is new
            return known
    return Known(*parts)


def _latest(parts: tuple[dict, ...]) -> Any:
    """Return the largest number under every key; the largest dictionary is copied whole, which is fast."""
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
    """Let all threads of a block know all of each other; those that have returned count as arrived."""
    block.phase += 1
    known = union([block.known, *(thread.known for thread in block.threads)])
    others = {thread: time for thread, time in known.times.items() if thread.block is not block}
    block.known = Known({**known.phases, block: block.phase}, others, known.journals)
    block.fenced = union([block.fenced, *(thread.fenced for thread in block.threads)])
    _adopt(block)


def pass_grid_sync(blocks: Iterable[BlockClock]) -> None:
    """Let all threads know everything; what was accessed before need not be asked for any more, and is forgotten."""
    for block in blocks:
        block.phase += 1
        block.known, block.fenced = Known({block: block.phase}, {}, {}), NOTHING
        _adopt(block)


def _adopt(block: BlockClock) -> None:
    for thread in block.threads:
        thread.known, thread.fenced, thread.fenced_for_block = block.known, block.fenced, block.fenced
        thread.end_epoch()


class Gathering:
    """What the threads of a cluster bring to its barrier, and take along."""

    __slots__ = ("_arrived", "_brought", "_taken", "meetings")

    def __init__(self) -> None:
        """Start before the first arrival."""
        self.meetings = 0
        self._arrived: dict[ThreadClock, tuple[Known, Known, Known]] = {}  # and not waited yet
        self._brought: list[tuple[Known, Known, Known]] = []
        self._taken = NOTHING, NOTHING, NOTHING

    def arrive(self, thread: ThreadClock) -> None:
        """Leave what a thread knows; what it does from now on is for the next time."""
        self._arrived[thread] = thread.known, thread.fenced, thread.fenced_for_block
        self._brought.append(self._arrived[thread])
        thread.arrivals += 1
        thread.end_epoch()

    def meet(self, cluster: Any) -> None:
        """Make one of what all have brought, and add that they were all there."""
        self.meetings += 1
        known, fenced, fenced_for_block = (union(parts) for parts in zip(*self._brought, strict=True))
        known = Known({**known.phases, cluster: self.meetings}, known.times, known.journals)
        self._taken, self._brought = (known, fenced, fenced_for_block), []

    def take(self, thread: ThreadClock) -> None:
        """Let a thread that has waited know all of it."""
        now = thread.known, thread.fenced, thread.fenced_for_block
        thread.known, thread.fenced, thread.fenced_for_block = (
            taken if own is brought else union((own, taken))  # it is in there, if the thread has learned nothing since
            for own, brought, taken in zip(now, self._arrived.pop(thread), self._taken, strict=True)
        )
        thread.end_epoch()


def meet(threads: list[ThreadClock]) -> None:
    """Let threads that have met in a warp operation, or at a team's barrier, know all of each other."""
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
    """Make all that the thread has done, and knows, fit to be passed on by an atomic."""
    thread.time += 1
    known = thread.known
    thread.fenced_for_block = Known(known.phases, {**known.times, thread: thread.time}, known.journals)
    if not for_block_only:
        thread.fenced = thread.fenced_for_block
    thread.end_epoch()


class Journal:
    """All that was ever left somewhere, in the order in which it came: numbers of blocks and threads that grow.

    Who takes what lies here remembers the journal's length alone, and a journal does so with others. So the cost of a
    lock or a counter that every thread of a grid passes does not grow with the number of those that came before.
    What one thread alone has left, as most do, is kept as it is.
    """

    __slots__ = ("_facts", "_only", "_where", "others")

    def __init__(self) -> None:
        """Start empty."""
        self._only: tuple[ThreadClock, Known] | None = None  # who has left something, if it is one, and what
        self._facts = 0
        self._where: dict[Any, tuple[list[int], list[int]]] = {}  # by block, thread or journal: numbers, and places
        self.others: list[Journal] = []  # of these

    def tells(self, earlier: Epoch, length: int) -> bool:
        """Return whether the first `length` facts themselves say that `earlier` happened before."""
        thread = earlier.thread
        return (
            self.latest(thread.block, length) > earlier.phase
            or self.latest(thread, length) > earlier.time
            or self.latest(thread.block.cluster, length) > earlier.arrivals
        )

    def latest(self, who: Any, length: int) -> int:
        """Return the number of a block, thread or journal in the first `length` facts, 0 if there is none."""
        if who not in self._where:
            return 0
        numbers, places = self._where[who]
        return numbers[bisect_left(places, length) - 1]

    def add(self, thread: ThreadClock, known: Known) -> None:
        """Leave what `thread` has fenced."""
        if not self._facts:
            if self._only is None or self._only[0] is thread:
                self._only = thread, known
                return
            self._extend(self._only[1])
            self._only = None
        self._extend(known)

    def _extend(self, known: Known) -> None:
        self.others += [journal for journal in known.journals if journal not in self._where]
        for table in known:
            for who, number in table.items():
                numbers, places = self._where.setdefault(who, ([0], [-1]))
                if numbers[-1] < number:
                    numbers.append(number)
                    places.append(self._facts)
                    self._facts += 1

    def learned_by(self, thread: ThreadClock) -> Known:
        """Return what a thread knows that takes what lies here: the same object if nothing is new."""
        known = thread.known
        if self._only is not None:
            return known if self._only[0] is thread else union((known, self._only[1]))
        if known.journals.get(self, 0) == self._facts:
            return known
        return Known(known.phases, known.times, {**known.journals, self: self._facts})


class Left:
    """What lies at an address for the next to come: for everybody, and for the threads of one block."""

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
        """Let `thread` know what lies here."""
        for journal in (self.for_all, self.for_block.get(thread.block)):
            if journal is not None:
                known = journal.learned_by(thread)
                if known is not thread.known:
                    thread.known = known
                    thread.end_epoch()
