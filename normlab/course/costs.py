"""Count what a solution costs: its requests, barriers and shuffles, and the work of its busiest thread.

The counts are those of `normlab.sim.trace`, with one difference. If a thread loads an element twice without a store or
a barrier between the loads, a compiler keeps the value in a register, so the second load is not counted. A student need
not do by hand what a compiler does. Registers hold few elements, however: a second walk along a row loads it again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from normlab.course.exercise import (
    BUSIEST,
    BUSIEST_LOADS,
    BUSIEST_SHARED,
    BUSIEST_STORES,
    EXCHANGES,
    GRID,
    SHARED_ACCESSES,
)
from normlab.sim.machine.launch import Launch, Launchable
from normlab.sim.machine.observed import ObservedArray, offset_of
from normlab.sim.tracing.counts import Counts
from normlab.sim.tracing.lanes import LaneRecorder, line_of
from normlab.sim.tracing.recorder import Recorder
from normlab.sim.tracing.sites import Sites
from normlab.sim.tracing.tally import Warps
from normlab.sim.tracing.trace import Trace

MEETINGS_THAT_ORDER_MEMORY = ("syncwarp",)
NO_SITE = -1  # of a load from a register
NOTHING = -1  # in a register, where there is no element
REGISTERS = 8  # elements that a thread holds: enough for what one turn of a loop uses again, and few beside a row


class Work(NamedTuple):
    """Accesses of threads by one instruction: their slots, and where each accesses `size` bytes of an array."""

    slots: Sequence[int] | np.ndarray
    addresses: Sequence[int] | np.ndarray
    size: int
    itemsize: int
    site: tuple  # a key of its own, and its line


class Costs(Recorder):
    """A recorder of requests that leaves out loads from registers, and counts each thread's accesses.

    A thread's slot stands for it: 32 times the number of its warp in the grid, plus its lane.
    """

    follows_flows = False

    def __init__(self) -> None:
        """Keep no request to be shown."""
        super().__init__(())

    def _begin(self, warps: Warps) -> None:
        """Begin with nothing loaded."""
        super()._begin(warps)
        # slot → what the thread holds in registers, the element that it used last at the end
        self.loaded: defaultdict[int, dict[tuple, None]] = defaultdict(dict)
        self.done: dict[str, list[Work]] = {metric: [] for metric in BUSIEST}

    def lanes(self, cuda: Any, cluster: int) -> LaneRecorder:
        """Return what counts for this recorder what the vectorised engine tells of the launch of `cuda`."""
        made = LaneCosts(self, cuda.gridDim, cuda.blockDim, cluster)
        self._count_for(made)
        return made

    def holds(self, slot: int, operation: str, place: tuple) -> bool:
        """Return whether an access loads what the thread has in a register; note what it has there afterwards.

        place: of the element, its space and address, and the size of the access.
        """
        loaded = self.loaded[slot]
        if operation != "ld":  # arrays may overlap, so a store may have changed any loaded element
            loaded.clear()
            return False
        held = place in loaded
        loaded.pop(place, None)
        loaded[place] = None
        if len(loaded) > REGISTERS:
            del loaded[next(iter(loaded))]
        return held

    def work(self, operation: str, space: str, done: Work) -> None:
        """Keep accesses until the end of the launch, when the busiest thread is looked for."""
        own = BUSIEST_LOADS if operation == "ld" else BUSIEST_STORES
        self.done[BUSIEST_SHARED if space == "shared" else own].append(done)

    def forget(self, slots: Iterable[int]) -> None:
        """Take note that other threads' stores are visible to these threads: their loads count again."""
        for slot in slots:
            self.loaded[slot].clear()

    def _recording(self) -> Callable[..., int]:
        """Return the function that logs every access except the loads that a compiler would remove."""
        log, cuda = super()._recording(), self.cuda

        def record(array: ObservedArray, key: Any, sites: Sites, number: int | None = None) -> int:
            slot, offset = cuda.current.seen.slot, offset_of(array, key)
            if offset is None:  # a slice, of which `log` records the elements one by one
                return log(array, key, sites, number)
            space, address = array.buffer.space, array.address + offset
            if self.holds(slot, sites.operation, (space, address, sites.size)):
                return NO_SITE
            number = log(array, key, sites, number)
            site = number, self._sites[number].line
            self.work(sites.operation, space, Work((slot,), (address,), sites.size, array.itemsize, site))
            return number

        return record

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Count a barrier, after which other threads' stores are visible."""
        super().barrier(block, arrived)
        self.forget(thread.seen.slot for thread in arrived)

    def meeting(self, group: list[Any]) -> None:
        """Count a warp operation."""
        super().meeting(group)
        if group[0].operation in MEETINGS_THAT_ORDER_MEMORY:
            self.forget(thread.seen.slot for thread in group)

    def fence(self, thread: Any, scope: str) -> None:
        """Count a fence, after which the thread's loads count again."""
        super().fence(thread, scope)
        self.forget([thread.seen.slot])

    def busiest(self, threads: int) -> dict[str, dict[str, Any]]:
        """Return the busiest thread for each metric, as `_most` describes it; `threads` of a block."""
        return {metric: self._most(metric, done, threads) for metric, done in self.done.items() if done}

    def _most(self, metric: str, done: list[Work], threads: int) -> dict[str, Any]:
        """Return the first thread with the most work: place, count, lines, its block's average, the launch's sum."""
        work = _accesses(done) if metric == BUSIEST_SHARED else _elements(done)  # by slot
        slot = int(np.argmax(work))
        block, position = self.tally.warps[slot // 32]
        by_warp = np.add.reduceat(work, np.arange(0, len(work), 32))
        worked = np.flatnonzero(by_warp).tolist()
        altogether = sum(int(by_warp[warp]) for warp in worked if self.tally.warps[warp][0] == block)
        sites: Counter[tuple] = Counter()
        for one in done:
            if count := int(np.count_nonzero(np.equal(one.slots, slot))):
                sites[one.site] += count
        return {
            "block": list(block),
            "warp": position,
            "lane": slot % 32,
            "count": int(work[slot]),
            "average": altogether / threads,
            "of_launch": int(work.sum()),
            "lines": [
                {"file": line.file, "line": line.number, "text": line.text} for (_, line), _ in sites.most_common()
            ],
        }


class LaneCosts(LaneRecorder):
    """Counts the same of a launch that the vectorised engine runs, for all lanes of a statement at once."""

    _recorder: Costs

    def __init__(self, recorder: Costs, grid: Any, block: Any, cluster: int):
        """Begin with nothing loaded."""
        super().__init__(recorder, grid, block, cluster)
        shape = prod(grid) * 32 * self.warps.of_a_block, REGISTERS
        self._loaded = np.full(shape, NOTHING)  # what each slot holds in registers
        self._used = np.zeros(shape, np.int64)  # when it used that last
        self._time = 0
        self._kinds: dict[tuple[str, int], int] = {}  # space and size of an access → its number, of a few

    def accessed(self, frame: Any, array: Any, places: Any, operation: str, width: int) -> None:
        """Log the accesses of a frame's lanes except the loads that a compiler would remove."""
        seen, itemsize, slots = array.seen, array.dtype.itemsize, self._slots_in(frame)
        places = np.broadcast_to(places, len(slots))
        addresses = seen.start + (places % seen.period if seen.period else places) * itemsize
        space, size = seen.buffer.space, width * itemsize
        if operation == "ld":
            counted = np.flatnonzero(~self._holds(slots, space, size, addresses))
            if not len(counted):
                return
            if len(counted) < len(slots):
                frame, places = frame.child(counted), places[counted]
                slots, addresses = slots[counted], addresses[counted]
        else:  # arrays may overlap, so a store may have changed any loaded element
            self._forget(slots)
        super().accessed(frame, array, places, operation, width)
        site = self._site_key(frame, array, operation, width), line_of(frame.call)
        self._recorder.work(operation, space, Work(slots, addresses, size, itemsize, site))

    def barrier(self, frame: Any) -> None:
        """Count barriers, after which other threads' stores are visible."""
        super().barrier(frame)
        self._forget(self._slots_in(frame))

    def warp_operation(self, frame: Any, operation: str, sources: np.ndarray | None) -> None:
        """Count warp operations."""
        super().warp_operation(frame, operation, sources)
        if operation in MEETINGS_THAT_ORDER_MEMORY:
            self._forget(self._slots_in(frame))

    def fence(self, frame: Any) -> None:
        """Take note of fences, after which the threads' loads count again."""
        self._forget(self._slots_in(frame))

    def _holds(self, slots: np.ndarray, space: str, size: int, addresses: np.ndarray) -> np.ndarray:
        """Return for each slot whether it holds what it loads, and note what it holds afterwards."""
        # 64 is more than a launch's kinds: accesses that share a number agree in address, space and size.
        places = 64 * addresses + self._kinds.setdefault((space, size), len(self._kinds))
        same = self._loaded[slots] == places[:, None]
        held = same.any(axis=1)
        # Another element takes the register that was not used for the longest time.
        register = np.where(held, same.argmax(axis=1), self._used[slots].argmin(axis=1))
        self._time += 1
        self._loaded[slots, register] = places
        self._used[slots, register] = self._time
        return held

    def _forget(self, slots: np.ndarray) -> None:
        """Take note that other threads' stores are visible to these threads: their loads count again."""
        self._loaded[slots] = NOTHING

    def _slots_in(self, frame: Any) -> np.ndarray:
        block, thread = np.divmod(frame.lanes.ids, self.threads)
        return (frame.lanes.machine.first + block) * (32 * self.warps.of_a_block) + thread


def _accesses(done: list[Work]) -> np.ndarray:
    """Return the number of accesses of each slot."""
    return np.bincount(np.concatenate([one.slots for one in done]))


def _elements(done: list[Work]) -> np.ndarray:
    """Return the number of different elements that each slot has accessed."""
    slots = np.concatenate([np.repeat(one.slots, one.size // one.itemsize) for one in done])
    addresses = np.concatenate([np.add.outer(one.addresses, range(0, one.size, one.itemsize)).ravel() for one in done])
    order = np.lexsort((addresses, slots))
    slots, addresses = slots[order], addresses[order]
    again = (slots[1:] == slots[:-1]) & (addresses[1:] == addresses[:-1])
    return np.bincount(slots[np.append(True, ~again)])


def _between(counts: Counts) -> dict[str, int]:
    """Return what threads spend to pass values to each other: SHARED_ACCESSES by threads, and EXCHANGES by warps."""
    shared = [counts.of("shared", operation) for operation in ("ld", "st", "atom")]
    return {
        SHARED_ACCESSES: sum(memory.lanes for memory in shared),
        EXCHANGES: counts.shuffles + counts.votes + sum(memory.requests for memory in shared),
    }


def costs(kernel: Any, engine: str = "auto") -> Launchable:
    """Return `kernel`, ready to launch; the launch returns its trace as a dict, with the busiest threads added.

    engine: as `trace` takes it; both engines count the same.

    "metrics" has six more: the number of blocks, named GRID; the work of the busiest thread, named BUSIEST_LOADS,
    BUSIEST_STORES and BUSIEST_SHARED; and the work between threads (`_between`), which each line has, too.
    """

    def start(launch: Launch, arguments: tuple) -> dict[str, Any]:
        recorder = Costs()
        launch.run(arguments, recorder, engine)
        recorder.count()
        traced, busiest = Trace(launch, recorder), recorder.busiest(prod(launch.block))
        counted = traced.as_dict()
        counted["metrics"] |= _between(traced.counts)
        for line, row in zip(counted["lines"], traced.by_line(), strict=True):
            line["metrics"] |= _between(recorder.tally.lines[row.line])
        for name in BUSIEST:
            counted["metrics"][name] = busiest[name]["count"] if name in busiest else 0
        counted["metrics"][GRID] = launch.grid.x * launch.grid.y * launch.grid.z
        return counted | {"busiest": busiest}

    return Launchable("costs", kernel, "forward", 1, start)
