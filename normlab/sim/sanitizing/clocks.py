"""Keep vector clocks of threads and blocks, which tell whether one access happened before another.

Two accesses of one address race if neither happened before the other. The sanitizer calls a function here at each
synchronisation, and asks `before(earlier, later)` at each access.

A full vector clock has an entry for every thread of the grid. The clocks here have fewer entries, because CUDA threads
synchronise in groups. A block counts its barriers: its `phase`. A thread counts its warp operations, its team's
barriers and its fences: its `time`. A thread also counts its arrivals at the cluster's barrier. All accesses of a
thread between two changes of what it knows or passes on share one `Epoch`. The comparison of two accesses is exact:
`tests/sim/sanitizing/test_clocks.py` compares it with reachability in the graph of all events. `shadow.py` decides
which accesses are kept to be compared.

A `threadfence` takes a snapshot of everything that happened before it: the thread's own accesses and, through earlier
barriers, its block's accesses. Every later atomic of the thread leaves the snapshot at its address. A thread that
reads the address afterwards, or updates it by an atomic, learns the snapshot. Where the PTX model asks for more than
working programs do, the programs are accepted: `Left.take`, `pass_barrier` and `Elements.write_at` say how.

Source: Flanagan and Freund, FastTrack: efficient and precise dynamic race detection, PLDI 2009; PTX ISA, memory
consistency model, causality order.
"""

from bisect import bisect_left
from collections.abc import Iterable
from types import CodeType
from typing import Any, NamedTuple


class Known(NamedTuple):
    """The accesses that happened before the owner's next access. Every entry maps a key to a number n.

    `phases`, key a block: all accesses of the block in phases below n. `phases`, key a cluster: all accesses that the
    cluster's threads made before their n-th arrival at its barrier. `times`, key a thread: its accesses at times below
    n. `journals`, key a journal: everything that the first n facts of the journal say. The facts themselves are not
    copied, because a journal may hold facts about thousands of threads.
    """

    phases: dict[Any, int]
    times: dict["ThreadClock", int]
    journals: dict["Journal", int]


NOTHING = Known({}, {}, {})


class BlockClock:
    """The barriers that a block has passed."""

    __slots__ = ("cluster", "fenced", "index", "known", "phase", "signals", "threads")

    def __init__(self, index: tuple[int, int, int], cluster: Any = None):
        """Start before the first barrier of a block of `cluster`."""
        self.index, self.cluster = index, cluster
        self.phase = 0
        self.known = self.fenced = NOTHING  # what its threads together knew and had fenced at the last barrier
        self.threads: list[ThreadClock] = []  # the threads that have a clock, also after they have returned
        # (thread, code's id, instruction) → address and access of the last atomic there; for the advice in `races.py`.
        self.signals: dict[tuple, tuple[int, Access]] = {}


class ThreadClock:
    """One thread's clock: what it knows to have happened before, and what its fences let its atomics pass on.

    An atomic passes `fenced` on to every thread of the grid. It passes `fenced_for_block`, which includes `fenced`, on
    to the threads of its own block.
    """

    __slots__ = (
        *("arrivals", "block", "epoch", "fenced", "fenced_for_block", "index", "known", "lane", "team", "time", "warp"),
    )

    def __init__(self, block: BlockClock, warp: int, lane: int, index: tuple[int, int, int]):
        """Start with what the block knows."""
        self.block, self.warp, self.lane, self.index = block, warp, lane, index
        self.time = self.arrivals = 0
        self.team = 0  # the number of the team barrier that the thread passed last; 0 for none
        self.known, self.fenced, self.fenced_for_block = block.known, block.fenced, block.fenced
        self.epoch: Epoch | None = None
        block.threads.append(self)

    @property
    def issuer(self) -> "ThreadClock":
        """The thread whose code made the access: here the thread itself, in a `CopyClock` another thread."""
        return self

    def now(self) -> "Epoch":
        """Return the thread's current epoch; begin one if none has begun."""
        if self.epoch is None:
            self.epoch = Epoch(self)
        return self.epoch

    def end_epoch(self) -> None:
        """Begin a new epoch at the next access, because the thread has learned or passed on something."""
        if self.epoch is not None:
            # The accesses point back to the epoch. Without this cycle the epoch is freed as soon as it is not used.
            self.epoch.accesses.clear()
            self.epoch = None


class CopyClock(ThreadClock):
    """The clock of a thread's asynchronous copies while they are under way, ordered with no other clock.

    Until a thread waits for it, a copy races with every later access of its target, even by the thread that started it.
    No barrier orders the copies, because their clock belongs to a block of its own. When a thread has waited for a
    copy, `copies.py` replaces the copy's write by a write of that thread.
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
    """A part of one thread's run: its accesses between two changes of what it knows or passes on."""

    __slots__ = ("accesses", "arrivals", "fenced", "known", "phase", "thread", "time")

    def __init__(self, thread: ThreadClock):
        """Begin with what `thread` knows now."""
        self.thread, self.time, self.phase, self.known = thread, thread.time, thread.block.phase, thread.known
        self.arrivals = thread.arrivals
        self.fenced = thread.fenced is not NOTHING  # whether the thread's atomics pass anything on to other blocks
        self.accesses: dict[int, Access] = {}  # by instruction


class Access(NamedTuple):
    """What a thread does at one instruction in an epoch, which keeps one for each instruction: `is` compares them."""

    epoch: Epoch  # the thread, and what had happened before
    code: CodeType  # of the function that makes the access
    instruction: int  # its offset in that code

    def same_instruction(self, other: "Access") -> bool:
        """Return True if both accesses are made by one instruction."""
        return self.instruction == other.instruction and self.code is other.code


def before(earlier: Epoch, later: Epoch) -> bool:
    """Return whether the accesses of `earlier` happened before `later`, which is the current epoch of its thread."""
    thread, known = earlier.thread, later.known
    return (
        # Program order first: it is the cheapest test, and decides most comparisons.
        thread is later.thread
        # A barrier of the earlier thread's block, whose completion the later one knows of.
        or known.phases.get(thread.block, 0) > earlier.phase
        # A warp operation, a team's barrier or a fence of the earlier thread itself.
        or known.times.get(thread, 0) > earlier.time
        # An arrival at the cluster's barrier that came after the access. A copy's block has no cluster: the key None is
        # in no table, and 0 > 0 orders nothing.
        or known.phases.get(thread.block.cluster, 0) > earlier.arrivals
        # Last, because it may search many journals: what atomics and flags have passed on.
        or _told(earlier, known.journals)
    )


def _told(earlier: Epoch, journals: dict["Journal", int]) -> bool:
    """Return whether `journals`, each up to its number of facts, say that `earlier` happened before.

    A fact may name another journal and a number of its facts. The search then includes these facts.
    """
    asked: dict[Journal, int] = {}  # journal → how many of its facts were searched; more may be asked for later
    rest = list(journals.items())
    while rest:
        journal, length = rest.pop()
        if asked.get(journal, 0) < length:
            asked[journal] = length
            if journal.tells(earlier, length):
                return True
            # As far as these facts name the other journal: what was added to it later is not known here.
            rest.extend((other, journal.latest(other, length)) for other in journal.others)
    return False


def union(portions: Iterable[Known]) -> Known:
    """Return everything that at least one of `portions` holds."""
    different = {id(known): known for known in portions if known is not NOTHING}
    # Nearly always all threads of a warp know the same object, and nothing is copied.
    if len(different) < 2:
        return next(iter(different.values()), NOTHING)
    parts = [_latest(tables) for tables in zip(*different.values(), strict=True)]
    for known in different.values():
        # If one portion includes all others, return that object: the caller tests with `is` whether anything is new.
        if all(table is part for table, part in zip(known, parts, strict=True)):
            return known
    return Known(*parts)


def _latest(parts: tuple[dict, ...]) -> Any:
    """Return a table with the largest number under each key; copy the longest of `parts` only if it has to change."""
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
    """Let every thread of a block know what all its threads know. Threads that have returned are included."""
    block.phase += 1
    # Also what returned threads knew: their accesses happened before the barrier as well.
    known = union([block.known, *(thread.known for thread in block.threads)])
    # The new phase covers all accesses of the block's own threads: only times of other blocks' threads are kept.
    others = {thread: time for thread, time in known.times.items() if thread.block is not block}
    block.known = Known({**known.phases, block: block.phase}, others, known.journals)
    # The fence and the atomic may come from two threads: threadfence(), syncthreads(), then an atomic by thread 0.
    # Fences for the block alone need not be kept: after the barrier the block's threads know all that they cover.
    block.fenced = union([block.fenced, *(thread.fenced for thread in block.threads)])
    _adopt(block)


def pass_grid_sync(blocks: Iterable[BlockClock]) -> None:
    """Begin a new phase of every block after a grid sync, and let the clocks forget everything else.

    The grid sync orders all earlier accesses before all later ones. The caller lets the shadows forget the earlier
    accesses, too, so `before` is never asked about one of them.
    """
    for block in blocks:
        block.phase += 1
        # NOTHING, though fences came before: what they cover is forgotten, and no atomic need pass it on.
        block.known, block.fenced = Known({block: block.phase}, {}, {}), NOTHING
        _adopt(block)


def _adopt(block: BlockClock) -> None:
    """Let every thread of a block know exactly what the block knows."""
    for thread in block.threads:
        thread.known, thread.fenced, thread.fenced_for_block = block.known, block.fenced, block.fenced
        thread.end_epoch()


def meet(threads: list[ThreadClock]) -> None:
    """Let `threads`, which have met in a warp operation or at a team's barrier, know what each of them knows."""
    known = union(thread.known for thread in threads)
    times = known.times.copy()
    for thread in threads:
        thread.time += 1
        # From now on all of them know each thread's accesses at times below its new time.
        times[thread] = thread.time
    known = Known(known.phases, times, known.journals)
    fenced = union(thread.fenced for thread in threads)
    fenced_for_block = union(thread.fenced_for_block for thread in threads)
    for thread in threads:
        thread.known, thread.fenced, thread.fenced_for_block = known, fenced, fenced_for_block
        thread.end_epoch()


def fence(thread: ThreadClock, for_block_only: bool) -> None:
    """Let later atomics of `thread` pass on everything that the thread has done and knows now.

    `for_block_only`: the fence is a `threadfence_block`, so the atomics pass it on only within the block.
    """
    # Ends the thread's time, so that the snapshot covers its accesses so far and none that come after the fence.
    thread.time += 1
    known = thread.known
    thread.fenced_for_block = Known(known.phases, {**known.times, thread: thread.time}, known.journals)
    # The same object, not an equal one: `Left.leave` compares with `is`, and then leaves one snapshot, not two.
    if not for_block_only:
        thread.fenced = thread.fenced_for_block
    thread.end_epoch()


class Journal:
    """A list of all facts that were ever left at one address, in order; it only grows.

    A fact is a key and a number, as in `Known`: it says that a block's accesses below a phase, a thread's accesses
    below a time, or the first facts of another journal happened before. A thread that reads the address remembers only
    how many facts the journal had. Thus a lock or a counter that every thread of a grid passes costs each thread the
    same, however many threads came before.

    Usually only one thread leaves anything at an address. Its latest `Known` is then kept whole, without facts.
    """

    __slots__ = ("_facts", "_only", "_where", "others")

    def __init__(self) -> None:
        """Start empty."""
        self._only: tuple[ThreadClock, Known] | None = None  # a thread and its latest `Known`, if it is the only one
        self._facts = 0  # the number of facts
        # Key of a fact → its numbers, which grow, and the position of each number's fact in the journal.
        self._where: dict[Any, tuple[list[int], list[int]]] = {}
        self.others: list[Journal] = []  # the keys of facts that are journals

    def tells(self, earlier: Epoch, length: int) -> bool:
        """Return whether the first `length` facts themselves say that `earlier` happened before.

        The facts of `others`, the journals that the facts name, are left to the caller.
        """
        thread = earlier.thread
        return (
            self.latest(thread.block, length) > earlier.phase
            or self.latest(thread, length) > earlier.time
            or self.latest(thread.block.cluster, length) > earlier.arrivals
        )

    def latest(self, key: Any, length: int) -> int:
        """Return the largest number that the first `length` facts have for `key`, or 0 if they have none."""
        if key not in self._where:
            return 0
        numbers, positions = self._where[key]
        # The last number whose position is below `length`. Entry 0, the number 0 at position -1, is always there.
        return numbers[bisect_left(positions, length) - 1]

    def add(self, thread: ThreadClock, known: Known) -> None:
        """Leave `known`, which `thread` has fenced. From the second thread on, write facts."""
        if not self._facts:
            if self._only is None or self._only[0] is thread:
                self._only = thread, known
                return
            # A second thread: what the first one left becomes the journal's first facts.
            self._extend(self._only[1])
            self._only = None
        self._extend(known)

    def _extend(self, known: Known) -> None:
        """Append a fact for each number in `known` that is larger than the journal's last one for its key."""
        # Facts about journals are searched recursively; a list of them saves looking at every key. Before the loop,
        # which enters their keys into `_where`.
        self.others += [journal for journal in known.journals if journal not in self._where]
        for table in known:
            for key, number in table.items():
                numbers, positions = self._where.setdefault(key, ([0], [-1]))
                if numbers[-1] < number:
                    numbers.append(number)
                    positions.append(self._facts)
                    self._facts += 1

    def learned_by(self, thread: ThreadClock) -> Known:
        """Return what `thread` knows together with all facts; return `thread.known` itself if nothing is new."""
        known = thread.known
        if self._only is not None:
            return known if self._only[0] is thread else union((known, self._only[1]))
        # Nothing was added since the thread's last visit; this also holds for a journal that is still empty.
        if known.journals.get(self, 0) == self._facts:
            return known
        return Known(known.phases, known.times, {**known.journals, self: self._facts})


class Left:
    """What atomics and stores have left at one address: a journal for all threads, and one for each block alone."""

    __slots__ = ("for_all", "for_block")

    def __init__(self) -> None:
        """Start with empty journals."""
        self.for_all = Journal()
        self.for_block: dict[BlockClock, Journal] = {}

    def leave(self, thread: ThreadClock) -> None:
        """Leave what `thread` has fenced, for all threads and for its block."""
        if thread.fenced is not NOTHING:
            self.for_all.add(thread, thread.fenced)
        if thread.fenced_for_block is not thread.fenced:
            if thread.block not in self.for_block:
                self.for_block[thread.block] = Journal()
            self.for_block[thread.block].add(thread, thread.fenced_for_block)

    def take(self, thread: ThreadClock) -> None:
        """Let `thread` know what was left for all threads and for its block."""
        # No fence of `thread` is asked for. The PTX model wants one, but NVIDIA's own threadFenceReduction has none.
        for journal in (self.for_all, self.for_block.get(thread.block)):
            if journal is not None:
                known = journal.learned_by(thread)
                # An epoch per new fact, not per read: a thread that polls a flag stays in one until it learns more.
                if known is not thread.known:
                    thread.known = known
                    thread.end_epoch()
