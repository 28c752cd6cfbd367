"""Prove that the order of threads does not matter: record who reads and writes what, and compare at every meeting.

The scheduler runs one thread to its next barrier, then the next thread; the engine runs one statement of all threads,
then the next statement. Both orders give the same memory if, between two meetings, no thread touches an element that
another one writes. So each store keeps a log of its accesses, and `Accesses.meet` compares the owners of the elements
when threads meet:

- between two meetings of any kind, an element belongs to one thread;
- between two meetings of a team or barriers of a block, to one warp: a shuffle or a `syncwarp` orders the lanes of a
  warp and no others;
- between two barriers of a block, to one team: a `team_sync` orders the threads that meet there;
- between two barriers of a cluster, to one block;
- in a whole chunk of blocks, an element of global memory belongs to one cluster, or block in a launch without clusters.

Several threads may write the same number to one element. Atomic operations of one kind do not depend on their order
(atomics.py says which); between them and a plain access the rules above hold. A conflict makes the engine give up, and
the scheduler's schedule decides what the race does.

What is compared is what the launch does on these arguments, element by element: nothing is guessed from the source.
Loads of arrays that the launch never writes need no log.
"""

from typing import Any, NamedTuple

import numpy as np

from normlab.sim.vectorised.refusal import CrowdedError, NotVectorisedError, OrderError

NOBODY, MANY = -1, -2  # in the place of an owner's number, which is 0 or more
MOST_LOGGED = 1 << 24  # places in all logs together
LEVELS = "warp", "team", "block", "cluster"  # who meets; a thread meets itself at every statement


class Log:
    """Accesses: (numbers of the lanes, places, what was written or which atomic)."""

    __slots__ = ("atomics", "reads", "writes")

    def __init__(self) -> None:
        """Start empty."""
        self.reads: list[tuple] = []
        self.writes: list[tuple] = []
        self.atomics: list[tuple] = []

    def extend(self, other: "Log") -> None:
        """Add the accesses of another log."""
        self.reads += other.reads
        self.writes += other.writes
        self.atomics += other.atomics

    @property
    def empty(self) -> bool:
        """Whether there are no accesses."""
        return not (self.reads or self.writes or self.atomics)

    def split(self, met: np.ndarray) -> tuple["Log", "Log"]:
        """Return the accesses of the lanes that `met` is true for, and those of the others."""
        parts = Log(), Log()
        for name in ("reads", "writes", "atomics"):
            for record in getattr(self, name):
                ids, places, extra = record
                inside = met[ids]
                count = int(np.count_nonzero(inside))
                # Nearly always all lanes of a record have met, or none. To move it whole saves 3 to 4 % of the time of
                # a kernel of short rows.
                if count in (0, len(ids)):
                    getattr(parts[0 if count else 1], name).append(record)
                    continue
                places = places if isinstance(places, np.ndarray) else np.full(len(ids), places)
                for part, chosen in zip(parts, (inside, ~inside), strict=True):
                    # A number that all lanes have stored is noted once, and so is the kind of an atomic.
                    kept = extra[chosen] if isinstance(extra, np.ndarray) and extra.ndim else extra
                    getattr(part, name).append((ids[chosen], places[chosen], kept))
        return parts


def _parted(log: Log, met: np.ndarray | None) -> tuple[Log, Log]:
    """Return the accesses of the lanes that have met, and those of the others. met: None for all lanes."""
    return (log, Log()) if met is None else log.split(met)


def joined(records: list[tuple], owners: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of all records, and the owners of the lanes; None: each lane is an owner."""
    places = [where if isinstance(where, np.ndarray) else np.full(len(ids), where) for ids, where, _ in records]
    ids = [one for one, _, _ in records]
    all_places, all_ids = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in (places, ids))
    return all_places, all_ids if owners is None else owners[all_ids]


def rising(records: list[tuple]) -> bool:
    """Return whether one record alone names every place once, in rising order, as `out[i] = …` does."""
    if len(records) != 1:
        return False
    ids, places, _ = records[0]
    # Places that rise differ from each other: no two lanes write to one element.
    return len(ids) == 1 or (isinstance(places, np.ndarray) and bool((places[1:] > places[:-1]).all()))


class Accesses:
    """The log of one store."""

    def __init__(self, machine: Any, data: np.ndarray, everywhere: bool):
        """Watch `data`; `everywhere`: all blocks reach it."""
        self.machine, self.data, self.everywhere = machine, data, everywhere
        # One log for each of LEVELS: of accesses since threads met at that level, which the levels below have compared.
        # `late`: of threads that have arrived at their cluster's barrier, and not yet waited there.
        self.logs, self.late = ([Log() for _ in LEVELS] for _ in range(2))
        self.chunk = Log()
        self.unit = 16  # bytes; used for dynamic shared memory alone
        self._marks: np.ndarray | None = None

    def _count(self, lanes: Any) -> None:
        self.machine.logged += lanes.width
        if self.machine.logged > MOST_LOGGED:
            raise CrowdedError("the kernel accesses too much memory between two barriers to compare the threads")

    def read(self, lanes: Any, places: Any) -> None:
        """Record a load."""
        self._count(lanes)
        self._note("reads", lanes.ids, places, None)
        if self.machine.pending:
            self.machine.forbid_pending(self, places)

    def written(self, lanes: Any, places: Any, numbers: Any) -> None:
        """Record a store of `numbers`, in the dtype of the memory."""
        self._count(lanes)
        self._note("writes", lanes.ids, places, numbers)
        if self.machine.pending:
            self.machine.forbid_pending(self, places)

    def updated(self, lanes: Any, places: Any, kind: str) -> None:
        """Record an atomic of a kind; raises OrderError if its order to an earlier one matters."""
        self._count(lanes)
        earlier = [record for log in self._all_logs() for record in log.atomics]
        # Operations of one kind commute, except those whose result is used: these do not commute with each other.
        others = [record for record in earlier if record[2] != kind or kind == "ordered"]
        if others and np.isin(places, joined(others, None)[0]).any():
            raise OrderError("the order of different atomic operations on one element matters")
        self._note("atomics", lanes.ids, places, kind)

    def _note(self, what: str, ids: np.ndarray, places: Any, extra: Any) -> None:
        arrived = self.machine.arrived
        if arrived is None or not arrived[ids].any():
            getattr(self.logs[0], what).append((ids, places, extra))
            return
        log = Log()
        getattr(log, what).append((ids, places, extra))
        # What a lane does between its arrival at the cluster's barrier and its wait there is ordered neither by this
        # meeting nor by the next one. So `meet` compares it with both phases.
        late, log = log.split(arrived)
        self.late[0].extend(late)
        self.logs[0].extend(log)

    def meet(self, level: str, met: np.ndarray | None) -> None:
        """Compare the accesses before a meeting at one of LEVELS, and hand them on to the next level or phase.

        `met`: a bool for each lane of the chunk; None: all lanes.
        """
        machine, top = self.machine, LEVELS.index(level)
        # Who shares an element without a race, level by level: the lane itself (None), its warp, its team, its block.
        owners = None, machine.warps, machine.teams_or_warps if top > 1 else None, machine.block_of
        # What is late is compared with what the next phase brings, too, as if it came after the wait.
        again = [_parted(log, met)[0] for log in self.late] if level == "cluster" else []
        # From the lowest level to the one that meets: what has been compared with small owners goes up to larger ones.
        done, late = Log(), Log()
        for place in range(top + 1):
            if place and self.logs[place].empty and self.late[place].empty:
                continue  # what a lower level has compared belongs to one owner here, too
            self.logs[place].extend(done)
            self.late[place].extend(late)
            everything = self.logs[place]
            if not self.late[place].empty:
                # Compared together but kept apart: what is late is compared with the next phase, too.
                everything = Log()
                everything.extend(self.logs[place])
                everything.extend(self.late[place])
            self.compare(everything, owners[place])
            done, self.logs[place] = _parted(self.logs[place], met)
            late, self.late[place] = _parted(self.late[place], met)
        if level != "cluster" and (level != "block" or machine.launch.cluster > 1):
            # Lanes of other owners have not met these: a meeting of a higher level compares them.
            self.logs[top + 1].extend(done)
            self.late[top + 1].extend(late)
            return
        for log, more in zip(self.logs, again, strict=False):
            log.extend(more)
        # No barrier orders the blocks. Global memory is compared once more, between clusters, when the chunk ends.
        if self.everywhere:
            self.chunk.extend(done)
            self.chunk.extend(late)

    @property
    def whole(self) -> "Accesses":
        """The log itself; a `Window` has one, too."""
        return self

    def count_in(self, unit: int) -> None:
        """Count places in units of so many bytes, for memory that is seen in several dtypes."""
        # Places that are logged already count larger units.
        if self.logged():
            raise NotVectorisedError("dynamic shared memory is used in a smaller dtype after a larger one")
        self.unit, self._marks = unit, None
        self.data = self.data.view(np.uint8).view(f"u{unit}")

    def logged(self) -> int:
        """Return how many places the logs hold."""
        records = [log.reads + log.writes + log.atomics for log in self._all_logs()]
        return sum(len(one[0]) for found in records for one in found)

    def _all_logs(self) -> list[Log]:
        return [*self.logs, *self.late, self.chunk]

    def finish(self) -> None:
        """Compare clusters, or blocks, with each other at the end of a chunk, and forget everything."""
        machine = self.machine
        # The end of a block, or of a cluster, is the last meeting of its threads.
        self.meet("cluster" if machine.launch.cluster > 1 else "block", None)
        if machine.blocks > machine.launch.cluster and self.everywhere:
            self.compare(self.chunk, machine.block_of // machine.launch.cluster)
        if self.everywhere and machine.launch.proof is not None:
            machine.launch.proof.compare_blocks(self, machine)
        self.chunk = Log()

    def compare(self, log: Log, owners: np.ndarray | None) -> None:
        """Raise OrderError if an owner touches what another one writes; `owners` of each lane, None: itself."""
        # Loads alone do not race. Atomics alone commute, or `updated` has refused them.
        if not log.writes and (not log.atomics or not log.reads):
            return
        if not log.reads and not log.atomics and rising(log.writes):
            return
        # `marks` is never cleared as a whole: only places that this call has set are read, so that the cost follows the
        # number of accesses and not the size of the array.
        if self._marks is None:
            self._marks = np.empty(len(self.data), np.int32)
        marks = self._marks
        if log.writes:
            touched = [joined(records, owners) for records in (log.reads, log.atomics) if records]
            for places, _ in touched:
                marks[places] = NOBODY
            places, who = joined(log.writes, owners)
            # Of several writers one number stays, the last; all other writers find that it is not theirs.
            marks[places] = who
            several = marks[places] != who
            if several.any():
                if self.machine.launch.proof is not None:
                    # Equal numbers do no harm, but `sanitize` reports the race.
                    raise OrderError("threads write to the same element between two barriers")
                self._same_numbers(log.writes, places, several)
                marks[places[several]] = MANY
            for places, who in touched:
                self._exclude(marks[places], who)
        # Atomics of several owners commute, but a load finds some of them done and others not.
        if log.atomics and log.reads:
            reads, readers = joined(log.reads, owners)
            updates, updaters = joined(log.atomics, owners)
            marks[reads] = NOBODY
            marks[updates] = updaters
            marks[updates[marks[updates] != updaters]] = MANY
            self._exclude(marks[reads], readers)

    @staticmethod
    def _exclude(found: np.ndarray, who: np.ndarray) -> None:
        if ((found != NOBODY) & (found != who)).any():
            raise OrderError("threads touch the same element between two barriers, and the schedule decides")

    def _same_numbers(self, records: list[tuple], places: np.ndarray, several: np.ndarray) -> None:
        """Raise OrderError unless all that was written to the places of several writers is what they hold."""
        contested = np.zeros(len(self.data), np.bool_)
        contested[places[several]] = True
        inside = contested[places]
        written = [np.broadcast_to(np.asarray(numbers), len(ids)) for ids, _, numbers in records]
        numbers = np.concatenate(written)[inside]
        # Memory holds the last number. As bytes a NaN equals itself, and 0.0 is not -0.0.
        if numbers.tobytes() != self.data[places[inside]].tobytes():
            raise OrderError("threads write different numbers to the same element, and the schedule decides")


class Owners(NamedTuple):
    """The lanes of some accesses, one for each place."""

    ids: np.ndarray
    width: int


class Window:
    """The log of dynamic shared memory, for accesses in one dtype: an element is one or several units of the log."""

    def __init__(self, whole: Accesses, itemsize: int):
        """Record accesses to elements of `itemsize` bytes in `whole`."""
        self.whole, self._itemsize = whole, itemsize

    def _units(self, lanes: Any, places: Any) -> tuple[Any, Any]:
        """Return the owners and the places of all units that the elements consist of."""
        several = self._itemsize // self.whole.unit
        if several == 1:
            return lanes, places
        places = places if isinstance(places, np.ndarray) else np.full(lanes.width, places)
        # Neighbouring units: those of the first element, then those of the second, …
        units = (places[:, None] * several + np.arange(several)).reshape(-1)
        return Owners(np.repeat(lanes.ids, several), len(units)), units

    def read(self, lanes: Any, places: Any) -> None:
        """Record a load."""
        self.whole.read(*self._units(lanes, places))

    def written(self, lanes: Any, places: Any, numbers: Any) -> None:
        """Record a store of `numbers`."""
        # One number for each unit, in the order in which `_units` gives the places.
        each = np.ascontiguousarray(np.broadcast_to(numbers, lanes.width))
        self.whole.written(*self._units(lanes, places), each.view(f"u{self.whole.unit}"))

    def updated(self, lanes: Any, places: Any, kind: str) -> None:
        """Record an atomic of a kind."""
        if kind == "float sum" and self._itemsize != self.whole.unit:
            raise NotVectorisedError("of float sums in memory of several dtypes")
        self.whole.updated(*self._units(lanes, places), kind)
