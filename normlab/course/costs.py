"""Count what a solution costs: its requests, barriers and shuffles, and the work of its busiest thread.

The counts are those of `normlab.sim.trace`, with one difference. If a thread loads an element twice without a store or
a barrier between the loads, a compiler keeps the value in a register, so the second load is not counted. A student need
not do by hand what a compiler does.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

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
from normlab.sim.tracing.recorder import Recorder
from normlab.sim.tracing.sites import Sites
from normlab.sim.tracing.trace import Trace

MEETINGS_THAT_ORDER_MEMORY = ("syncwarp",)
NO_SITE = -1  # of a load from a register


class Costs(Recorder):
    """A recorder of requests that leaves out loads from registers, and counts each thread's accesses."""

    def __init__(self) -> None:
        """Begin with nothing loaded."""
        super().__init__(())
        self.loaded: defaultdict[Any, set[tuple]] = defaultdict(set)  # thread → what it holds in registers
        self.elements_read: defaultdict[Any, set[int]] = defaultdict(set)  # thread → addresses in global memory
        self.elements_written: defaultdict[Any, set[int]] = defaultdict(set)
        self.shared: Counter[Any] = Counter()  # thread → accesses of shared memory
        self.places: defaultdict[tuple, Counter[int]] = defaultdict(Counter)  # thread, metric → accesses by site

    def _recording(self) -> Callable[..., int]:
        """Return the function that logs every access except the loads that a compiler would remove."""
        log, cuda = super()._recording(), self.cuda
        loaded, read, written, shared = self.loaded, self.elements_read, self.elements_written, self.shared
        places = self.places

        def record(array: ObservedArray, key: Any, sites: Sites, number: int | None = None) -> int:
            thread, offset = cuda.current, offset_of(array, key)
            if offset is None:  # a slice, of which `log` records the elements one by one
                return log(array, key, sites, number)
            address = array.address + offset
            if sites.operation == "ld":
                held = array.buffer.space, address, sites.size
                if held in loaded[thread]:
                    return NO_SITE
                loaded[thread].add(held)
            else:  # arrays may overlap, so a store may have changed any loaded element
                loaded[thread].clear()
            number = log(array, key, sites, number)
            if sites.shared:
                shared[thread] += 1
                places[thread, BUSIEST_SHARED][number] += 1
            else:
                metric, touched = (BUSIEST_LOADS, read) if sites.operation == "ld" else (BUSIEST_STORES, written)
                touched[thread].update(range(address, address + sites.size, array.itemsize))
                places[thread, metric][number] += 1
            return number

        return record

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Count a barrier, after which other threads' stores are visible."""
        super().barrier(block, arrived)
        self._forget(arrived)

    def meeting(self, group: list[Any]) -> None:
        """Count a warp operation."""
        super().meeting(group)
        if group[0].operation in MEETINGS_THAT_ORDER_MEMORY:
            self._forget(group)

    def fence(self, thread: Any, scope: str) -> None:
        """Count a fence, after which the thread's loads count again."""
        super().fence(thread, scope)
        self._forget([thread])

    def _forget(self, threads: list[Any]) -> None:
        for thread in threads:
            self.loaded[thread].clear()

    def busiest(self) -> dict[str, dict[str, Any]]:
        """Return the busiest thread for each metric, as `_most` describes it."""
        work = {
            BUSIEST_LOADS: _sizes(self.elements_read),
            BUSIEST_STORES: _sizes(self.elements_written),
            BUSIEST_SHARED: self.shared,
        }
        return {metric: self._most(metric, counts) for metric, counts in work.items() if counts}

    def _most(self, metric: str, work: Counter[Any]) -> dict[str, Any]:
        """Return the thread with the most work: its place, count and lines, busiest first, and its block's average."""
        ((thread, count),) = work.most_common(1)
        warps = thread.block.warps
        threads = [one for warp in warps for one in warp.threads]
        lines = [self._sites[number].line for number, _ in self.places[thread, metric].most_common()]
        return {
            "block": list(thread.block.index),
            "warp": warps.index(thread.warp),
            "lane": thread.lane,
            "count": count,
            "average": sum(work[one] for one in threads) / len(threads),
            "lines": [{"file": line.file, "line": line.number, "text": line.text} for line in lines],
        }


def _sizes(addresses: dict[Any, set[int]]) -> Counter[Any]:
    return Counter({thread: len(found) for thread, found in addresses.items()})


def _between(counts: Counts) -> dict[str, int]:
    """Return what threads spend to pass values to each other: SHARED_ACCESSES by threads, and EXCHANGES by warps."""
    shared = [counts.of("shared", operation) for operation in ("ld", "st", "atom")]
    return {
        SHARED_ACCESSES: sum(memory.lanes for memory in shared),
        EXCHANGES: counts.shuffles + counts.votes + sum(memory.requests for memory in shared),
    }


def costs(kernel: Any) -> Launchable:
    """Return `kernel`, ready to launch; the launch returns its trace as a dict, with the busiest threads added.

    "metrics" has six more: the number of blocks, named GRID; the work of the busiest thread, named BUSIEST_LOADS,
    BUSIEST_STORES and BUSIEST_SHARED; and the work between threads (`_between`), which each line has, too.
    """

    def start(launch: Launch, arguments: tuple) -> dict[str, Any]:
        recorder = Costs()
        launch.run(arguments, recorder)
        recorder.count()
        traced, busiest = Trace(launch, recorder), recorder.busiest()
        counted = traced.as_dict()
        counted["metrics"] |= _between(traced.counts)
        for line, row in zip(counted["lines"], traced.by_line(), strict=True):
            line["metrics"] |= _between(recorder.tally.lines[row.line])
        for name in BUSIEST:
            counted["metrics"][name] = busiest[name]["count"] if name in busiest else 0
        counted["metrics"][GRID] = launch.grid.x * launch.grid.y * launch.grid.z
        return counted | {"busiest": busiest}

    return Launchable("costs", kernel, "forward", 1, start)
