"""Count the requests of a launch that the vectorised engine runs: all lanes of many blocks access memory at once.

The engine hands over the places that the lanes of a statement access, as one vector. The counters need no order. Two
things need that of the scheduler, and get it afterwards: which request of a line was first, and the flows of values.
"""

import ast
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from normlab.sim.language.source import Line, name_at
from normlab.sim.machine.memory import DYNAMIC_ADDRESS, SHARED_SPACING
from normlab.sim.machine.observed import Buffer
from normlab.sim.machine.shuffles import SOURCES, VOTES
from normlab.sim.protocols import CLUSTER_PASSES
from normlab.sim.tracing.flows import Flows
from normlab.sim.tracing.log import Groups
from normlab.sim.tracing.sites import RANK_SPACING, Site

LONG = 1 << 20  # accesses that are counted together: 100 MB
SOME = 1 << 12  # events that become Python numbers together (`_follow`)
AFTER_LANES, AFTER_WARPS = 32, 1 << 30  # a meeting comes after the lanes of its warp, a barrier after the warps


class Seen(NamedTuple):
    """An array that is traced."""

    buffer: Buffer
    start: int  # the address of place 0
    period: int  # in elements, how far apart two blocks' arrays lie in the chunk's memory; 0 for global memory


class Access(NamedTuple):
    """What the lanes `ids` of a chunk did at once."""

    turn: int  # how many events the engine had told of before
    first: int  # the chunk's first block
    ids: np.ndarray
    moment: tuple[Any, Any]  # pass and round (vectorised/rounds.py): an int for all lanes, or an array
    places: Any  # in elements from the beginning of the array's memory; an int, or one for each lane


class Meeting(NamedTuple):
    """Threads of the first block that met."""

    turn: int
    ids: np.ndarray
    moment: tuple[Any, Any]
    line: Line
    level: str  # "warp", "team", or "block" for the barrier of all threads of a block or cluster
    sources: np.ndarray | None  # of a shuffle: for each thread, the one whose value it got

    def events(self, flows: Flows) -> Iterator[tuple[tuple[int, int, int, int], Callable]]:
        """Return for each group of threads that met when it did, and what tells `flows`."""
        passes, rounds = (np.broadcast_to(part, len(self.ids)) for part in self.moment)
        if self.level != "warp":
            ids = self.ids.tolist()
            tell = partial(flows.barrier, ids) if self.level == "block" else partial(flows.meeting, ids, self.line)
            yield (int(passes.max()), AFTER_WARPS, 0, 0), lambda *_: tell()
            return
        for warp in np.unique(self.ids // 32).tolist():
            inside = np.flatnonzero(self.ids // 32 == warp)
            inside = inside[np.argsort(rounds[inside], kind="stable")]  # as they come to the meeting
            ids = self.ids[inside].tolist()
            moves = [] if self.sources is None else list(zip(self.sources[inside].tolist(), ids, strict=True))
            # The last lane decides when the group meets; of several groups then, that whose first lane came first.
            come = AFTER_LANES + 32 * int(rounds[inside[0]]) + ids[0] % 32
            when = int(passes[inside[0]]), warp, int(rounds[inside[-1]]), come
            yield when, partial(_follow_meeting, flows, ids, self.line, moves)


class LaneRecorder:
    """Puts what the lanes do into the counters of a `Recorder` (recorder.py)."""

    def __init__(self, recorder: Any, grid: Any, block: Any, cluster: int):
        """Count for `recorder` a launch over a grid of blocks, `cluster` of which make a cluster."""
        self._recorder, self._cluster = recorder, cluster
        self.threads = block.x * block.y * block.z
        self.warps = WarpNumbers(grid, -(-self.threads // 32))
        self._sites: dict[tuple, Any] = {}  # by what tells them apart → Site, until they have a number
        self._accesses: dict[tuple, list[Access]] = {}  # by the key of their site, since the last count
        self._numbers: dict[tuple, int] = {}  # by the key of a site: its number in the tally
        self._shared: dict[Any, Seen] = {}  # by the call that makes the array
        self._remote: dict[Buffer, Seen] = {}  # by the block's own array: the same array in other blocks
        self._found: dict[tuple, tuple] = {}  # shared arrays, also of other blocks → where the scheduler finds them
        self._shared_count = 0  # of entries that the scheduler's block would have
        self._meetings: list[Meeting] = []
        self._rows: list[np.ndarray] = []  # of the first block's events: see `_follow`
        self._functions: list[Callable] = []  # which tell the flows of these events
        self._slots: dict[tuple[int, int], np.ndarray] = {}  # of the lanes that are logged
        self._logged = 0  # accesses since the last count
        self._grid_syncs = 0
        self._turn = -1  # of the last access

    # --- arrays ------------------------------------------------------------------------------------------------------

    def argument(self, value: np.ndarray, name: str, offset: int) -> Seen:
        """Return what is known of an array of the host, whose first element is at place `offset` of its memory."""
        buffer = self._recorder.adopt(value, name).buffer
        return Seen(buffer, buffer.address - offset * value.itemsize, 0)

    def shared(self, frame: Any, key: Any, array: Any, dynamic: bool) -> Seen:
        """Return what is known of the shared array of a call, or, if `dynamic`, of a view of dynamic shared memory."""
        if key not in self._shared:
            # The addresses are the scheduler's (machine/memory.py): it numbers what a block has, and has one entry more
            # for the memory that all dynamic arrays share.
            if dynamic and not any(seen.buffer.address == DYNAMIC_ADDRESS for seen in self._shared.values()):
                self._shared_count += 1
            address = DYNAMIC_ADDRESS if dynamic else self._shared_count * SHARED_SPACING
            self._shared_count += 1
            node = frame.call.at
            name = name_at(frame.call.file, node.end_lineno, node.end_col_offset, "shared array")
            buffer = Buffer(name, "shared", np.empty(array.shape, array.dtype), address)
            self._recorder.add(buffer)
            self._shared[key] = Seen(buffer, address, array.base[1])
        self._finds(frame, self._shared[key].buffer)
        return self._shared[key]

    def _finds(self, frame: Any, buffer: Buffer) -> None:
        """Note when the scheduler's first thread comes to an array, unless an earlier call has come there before."""
        machine, ids = frame.lanes.machine, frame.lanes.ids
        order = machine.rounds.order(ids)
        first = ids[:1] if order is None else ids[order[:1]]
        # The chunk before its keys, because these number the blocks within the chunk.
        keys = machine.rounds.keys(first, machine.rounds.of(first))
        when = self._grid_syncs, machine.first, *(int(key[0]) for key in reversed(keys)), machine.launch.told
        key = buffer.space, buffer.name, buffer.array.shape, buffer.address
        self._found[key] = min(self._found.get(key, when), when)

    # --- accesses ----------------------------------------------------------------------------------------------------

    def accessed(self, frame: Any, array: Any, places: Any, operation: str, width: int) -> None:
        """Log that each lane of a frame accesses `width` elements of an array from its place on."""
        machine = frame.lanes.machine
        # A statement of lanes with several types of values is told in parts, with one number of turn.
        if self._logged > LONG and machine.launch.told != self._turn:
            self.count(machine)
        self._turn = machine.launch.told
        key = self._site_key(frame, array, operation, width)
        ids = frame.lanes.ids
        access = Access(self._turn, machine.first, ids, machine.rounds.of(ids), places)
        self._accesses.setdefault(key, []).append(access)
        self._logged += frame.width

    def _site_key(self, frame: Any, array: Any, operation: str, width: int) -> tuple:
        """Return what tells a site from others: the key of its `Site`, which is made if it is new."""
        call, buffer = frame.call, array.seen.buffer
        key: tuple = operation, width, id(buffer), id(call.at)
        while call.caller is not None:  # a function that is called at several places: each is a site, as after inlining
            call = call.caller
            key = (*key, id(call.at))
        if key not in self._sites:
            parts = 2 if array.dtype.kind == "c" else 1  # the compiler loads a complex number as two floats
            size = width * array.dtype.itemsize // parts
            line = line_of(frame.call)
            made = Site(line, operation, size, buffer.state, buffer.address, buffer.allocation, parts)
            self._sites[key] = made, array.seen, array.dtype.itemsize
        return key

    def reached(self, frame: Any, array: Any, places: Any, ranks: Any, operation: str) -> None:
        """Log that each lane of a frame accesses, at its place, the array that the block with a rank has."""
        own = (ranks == frame.lanes.numbers("clusterrank")) & (operation == "ld")  # as in `Recorder.remote`
        places = np.broadcast_to(places, len(ranks))
        if own.any():
            self.accessed(frame.child(np.flatnonzero(own)), array, places[own], operation, 1)
        if own.all():
            return
        buffer = array.seen.buffer
        if buffer not in self._remote:
            there = Buffer(buffer.name, "dshared", buffer.array, buffer.address)
            self._recorder.add(there)
            self._remote[buffer] = Seen(there, array.seen.start, 0)
        remote, others = array.viewed(array.shape, array.strides, array.offset), frame.child(np.flatnonzero(~own))
        remote.seen = self._remote[buffer]  # of a view, because the array itself is still the block's own
        self._finds(others, remote.seen.buffer)
        places = (places + ranks * (RANK_SPACING // array.dtype.itemsize))[~own]
        self.accessed(others, remote, places, operation, 1)

    def count(self, machine: Any = None) -> None:
        """Count everything that is logged, and forget it; `machine`: the chunk, if it is in the middle of its run."""
        logs = {key: self._log(accesses, *self._sites[key][1:]) for key, accesses in self._accesses.items()}
        # The scheduler numbers sites as it comes to them.
        for key in sorted(logs.keys() - self._numbers.keys(), key=lambda key: logs[key].earliest):
            self._numbers[key] = len(self._recorder.tally.sites)
            self._recorder.tally.sites += [self._sites[key][0]] * self._sites[key][0].parts
        heat = self._recorder.heat
        for key in sorted(self._found, key=self._found.__getitem__):
            heat[key] = heat.pop(key)  # to the end of the dict
        for key in sorted(logs, key=self._numbers.__getitem__):
            site = self._sites[key][0]
            for part in range(site.parts):
                table, groups = logs[key].numbered(self._numbers[key] + part, self._grid_syncs)
                table[:, 3] += part * site.size  # an imaginary part follows the real part in memory
                self._recorder.tally.add(table, groups)
        kept = self._recorder.tally.kept
        # As the scheduler comes to them. The second number of `began` is a site's and no time (`Log.numbered`).
        for one in sorted(kept, key=lambda one: (kept[one].began[0], kept[one].began[2:])):
            kept[one] = kept.pop(one)
        if self._recorder.flows.block:
            # What the first block's warps do in a pass is in order when all of them have come to a later one.
            live: Any = [] if machine is None or machine.first else np.flatnonzero(machine.alive[: self.threads])
            self._follow(logs, int(np.min(machine.rounds.of(live)[0])) if len(live) else None)
        self._accesses.clear()
        self._slots.clear()
        self._meetings.clear()
        self._logged = 0

    def _log(self, accesses: list[Access], seen: Seen, itemsize: int) -> "Log":
        """Return the accesses of one site, each request's together."""
        lengths = [len(one.ids) for one in accesses]
        turn = np.repeat([one.turn for one in accesses], lengths)
        slot = np.concatenate([self._slots_of(one) for one in accesses])
        passes, rounds = (
            np.concatenate([np.broadcast_to(one.moment[part], len(one.ids)) for one in accesses]) for part in (0, 1)
        )
        places = np.concatenate([np.broadcast_to(one.places, len(one.ids)) for one in accesses])
        address = seen.start + (places % seen.period if seen.period else places) * itemsize
        columns = np.stack([turn, slot, address, passes, rounds])
        # Lanes of several types come one type after the other, and lanes of one request may be in several rounds.
        in_parts = any(one.turn <= before.turn for before, one in pairwise(accesses))
        if in_parts or not all(isinstance(part, int) for one in accesses for part in one.moment):
            columns = columns[:, np.lexsort((slot, rounds, slot // 32, turn))]
        return Log(columns, self.warps.of_a_block, self._cluster)

    def _slots_of(self, access: Access) -> np.ndarray:
        """Return 32 times the number of its warp in the grid, plus its lane, for each lane."""
        key = access.first, id(access.ids)  # its own: all arrays of ids are alive until `count` clears `_slots`
        if key not in self._slots:
            block, thread = np.divmod(access.ids, self.threads)
            self._slots[key] = (access.first + block) * (32 * self.warps.of_a_block) + thread
        return self._slots[key]

    # --- threads -----------------------------------------------------------------------------------------------------

    def barrier(self, frame: Any) -> None:
        """Count a barrier of every block whose threads are here."""
        ids = frame.lanes.ids
        line = line_of(frame.call)
        self._recorder.tally.counts_of(line).barriers += _different(ids // self.threads)
        self._met(frame, line, "block", ids)

    def cluster_wait(self, frame: Any) -> None:
        """Count a barrier of every cluster whose threads are here."""
        ids = frame.lanes.ids
        line = line_of(frame.call)
        self._recorder.tally.counts_of(line).cluster_syncs += _different(ids // (self.threads * self._cluster))
        self._met(frame, line, "block", ids)

    def team_sync(self, frame: Any, teams: np.ndarray) -> None:
        """Count a barrier of every team whose threads are here."""
        line, ids = line_of(frame.call), frame.lanes.ids
        self._recorder.tally.counts_of(line).barriers += len(np.unique(teams))
        for number in np.unique(teams[ids < self.threads]).tolist():  # of the chunk's first block
            self._met(frame, line, "team", ids[teams == number])

    def fence(self, frame: Any) -> None:
        """A fence is no request."""

    def grid_sync(self, frame: Any) -> None:
        """Count a grid sync, and all requests before it: the next ones of every block come after them."""
        self.count()
        self._grid_syncs += 1
        self._recorder.tally.counts_of(line_of(frame.call)).grid_syncs += 1

    def warp_operation(self, frame: Any, operation: str, sources: np.ndarray | None) -> None:
        """Count a warp operation of every warp whose lanes are here; `sources`: the places of a shuffle's sources."""
        machine, ids = frame.lanes.machine, frame.lanes.ids
        line = line_of(frame.call)
        counts = self._recorder.tally.counts_of(line)
        warps = _different(machine.warps[ids])
        if operation in SOURCES:
            counts.shuffles += warps
        elif operation in VOTES:
            counts.votes += warps
        else:
            counts.warp_syncs += warps
        self._met(frame, line, "warp", ids, sources)

    def _met(self, frame: Any, line: Line, level: str, ids: np.ndarray, sources: np.ndarray | None = None) -> None:
        """Log a meeting of threads of the first block."""
        machine = frame.lanes.machine
        if machine.first or not self._recorder.flows.block:
            return
        count = int(np.searchsorted(ids, self.threads))  # the numbers rise, so the first block's come first
        if count:
            passes, rounds = machine.rounds.of(ids)
            moment = _part(passes, count), _part(rounds, count)
            given = None if sources is None else ids[sources[:count]]
            self._meetings.append(Meeting(machine.launch.told, ids[:count], moment, line, level, given))

    def _follow(self, logs: dict[tuple, "Log"], end: int | None) -> None:
        """Follow values through the first block in the scheduler's order, as far as pass `end`, or to the last pass."""
        flows, rows, functions = self._recorder.flows, self._rows, self._functions
        # The columns: pass, warp, round, lane, turn; thread and address; the number of the event's function.
        for key, log in logs.items():
            site, seen, _ = self._sites[key]
            turn, slot, address, passes, rounds = log.columns[:, log.columns[1] < self.threads]
            if site.heat.space == "shared" and len(turn):
                number = np.full_like(turn, len(functions))
                rows.append(np.stack([passes, slot // 32, rounds, slot % 32, turn, slot, address, number]))
                functions.append(partial(_follow_access, flows, seen.buffer.name, site))
        for meeting in self._meetings:
            for when, function in meeting.events(flows):
                rows.append(np.array([[*when, meeting.turn, 0, 0, len(functions)]]).T)
                functions.append(function)
        if not rows:
            return
        table = np.concatenate(rows, axis=1)
        # The events of pass `end` and later ones wait, because some threads have not come to theirs yet.
        ready = np.ones(table.shape[1], np.bool_) if end is None else table[0] < end
        self._rows = [table[:, ~ready]]  # whose functions stay in the list, under the same numbers
        table = table[:, ready]
        # The scheduler has another order if one of its threads gives way after 64 atomics (machine/scheduler.py: TURN).
        order = np.lexsort(table[4::-1])
        for first in range(0, len(order), SOME):  # in parts, because the flows have a limit that is soon reached
            for thread, address, number in zip(*table[5:, order[first : first + SOME]].tolist(), strict=True):
                if flows.block:
                    functions[number](thread, address)
        if ready.all() or not flows.block:
            self._rows.clear()
            functions.clear()


def _follow_meeting(flows: Flows, threads: list[int], line: Line, moves: list[tuple[int, int]], *_: int) -> None:
    flows.meeting(threads, line, moves)


def _follow_access(flows: Flows, name: str, site: Site, thread: int, address: int) -> None:
    flows.access(thread, name, address, site.operation, site.line)


class Log:
    """The accesses of one site: turn, slot, address, pass and round of each, in five rows."""

    def __init__(self, columns: np.ndarray, warps: int, cluster: int):
        """Find the requests, neighbours of one warp in one turn; `warps` of a block, `cluster` blocks in a cluster."""
        self.columns = columns
        turn, slot, _, passes, rounds = columns
        warp = slot // 32
        # Lanes of one warp in one vector are one request, so no lane needs a path (language/paths.py).
        begins = np.ones(len(turn), np.bool_)
        begins[1:] = (turn[1:] != turn[:-1]) | (warp[1:] != warp[:-1])
        self._group, self._first = np.cumsum(begins) - 1, np.flatnonzero(begins)
        first = self._first
        block, passes = warp[first] // warps, passes[first]
        phase = passes // CLUSTER_PASSES
        # The last key counts most. In a round each lane runs to its stop before the next, so slots come before turns.
        keys = turn[first], slot[first], rounds[first], warp[first], passes, block, phase, block // cluster
        order = np.lexsort(keys)
        self._rank = np.empty_like(order)
        self._rank[order] = np.arange(len(order))
        self._when = np.stack(keys[::-1], axis=1)
        self.earliest = tuple(self._when[order[0]].tolist())

    def numbered(self, site: int, grid_syncs: int) -> tuple[np.ndarray, Groups]:
        """Return the accesses as the tally takes them, as those of the site with this number after some grid syncs."""
        turn, slot, address, *_ = self.columns
        table = np.stack([np.full_like(turn, site), turn, slot, address], axis=1)
        sites, lanes = np.full(len(self._first), site), np.bincount(self._group)
        # Of several sites at one line, the scheduler's recorder keeps the requests site after site.
        when = np.column_stack([np.full_like(sites, grid_syncs), sites, self._when])
        return table, Groups(sites, lanes, self._group, self._rank, when)


class WarpNumbers:
    """The block's index and the position in the block of every warp, by its number."""

    def __init__(self, grid: Any, warps: int):
        """Count `warps` warps per block."""
        self._grid, self.of_a_block = grid, warps  # and no list, which would be as long as the grid

    def __getitem__(self, number: int) -> tuple[tuple[int, int, int], int]:
        """Return (index of the block, position of the warp)."""
        block, warp = divmod(number, self.of_a_block)
        columns, rows, _ = self._grid
        return (block % columns, block // columns % rows, block // (columns * rows)), warp


def _part(numbers: Any, count: int) -> Any:
    return numbers if isinstance(numbers, int) else numbers[:count]


def line_of(call: Any) -> Line:
    """Return the line at which the function of a call runs."""
    node = call.at
    # Of `a.b.c(…)` over several lines, the interpreter names the line of the last name.
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return Line(call.file, node.func.end_lineno or node.lineno)
    return Line(call.file, node.lineno)


def _different(rising: np.ndarray) -> int:
    """Return how many different numbers there are among rising ones."""
    return 1 + int(np.count_nonzero(rising[1:] != rising[:-1]))
