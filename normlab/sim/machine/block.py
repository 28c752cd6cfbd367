"""Run a block: its warps in turns, the barrier of all its threads, and barriers of a part of them.

A team is the threads that meet at a barrier with a number and a count, PTX's `bar.sync number, count`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from normlab.sim.language.errors import BarrierError, DeadlockError, SimulationError, place
from normlab.sim.machine.clusters import Cluster
from normlab.sim.machine.threads import WARP_SIZE, Dim3, Thread
from normlab.sim.machine.waiting import describe_waiting
from normlab.sim.machine.warp import Warp
from normlab.sim.protocols import Grid


class Block:
    """The threads of one block, its barrier and its shared memory."""

    def __init__(self, grid: Grid, index: Dim3, cluster: Cluster):
        """Make the threads of the block; they begin to run with `run`."""
        self.grid, self.index, self.cluster = grid, index, cluster
        self.seen: Any = None  # whatever the launch's observer keeps for this block
        self.shared: dict[Any, np.ndarray] = {}  # filled by memory.py
        self.shared_spans: list[tuple[int, int, Any]] = []  # begin, end and key of each array in `shared`
        self.static_bytes = 0  # of the shared arrays with a fixed shape
        self.arrived: list[Thread] = []  # the threads that wait at the block's barrier; below, at other meetings
        self.at_team: dict[int, list[Thread]] = {}  # number of a team's barrier → the threads that wait there
        self.at_cluster: list[Thread] = []
        self.at_grid_sync: list[Thread] = []
        self.warps: list[Warp] = []
        threads = grid.thread_indices
        # Threads go into warps in linear order, x fastest: a block of 8 x 8 threads has two warps of four rows each.
        for first in range(0, len(threads), WARP_SIZE):
            warp = Warp(self)
            for lane, thread_index in enumerate(threads[first : first + WARP_SIZE]):
                warp.threads.append(Thread(grid.fiber(), thread_index, lane, warp, self))
            warp.live, warp.live_mask = list(warp.threads), (1 << len(warp.threads)) - 1
            warp.ready = list(warp.threads)
            self.warps.append(warp)
        self.live_count = len(threads)

    @property
    def threads(self) -> list[Thread]:
        """All threads, returned ones too, in linear order."""
        return [thread for warp in self.warps for thread in warp.threads]

    @property
    def spinning(self) -> bool:
        """Whether a thread polls memory in a loop; a store of another block may end the loop."""
        return any(warp.spinning for warp in self.warps)

    def run(self) -> None:
        """Run until every thread has returned or waits for another block.

        Raises DeadlockError when the threads that are left wait for each other.
        """
        grid = self.grid
        grid.cuda.blockIdx = self.index
        while self.live_count:
            before = grid.progress  # counts changes of memory and released barriers
            for warp in grid.order(self.warps):
                # Nothing is left to run in a warp whose lanes all wait at barriers.
                if warp.ready or warp.spinning:
                    warp.run()
            # Threads that have returned count as arrived, as on a GPU: `live_count` is without them.
            if self.arrived and len(self.arrived) == self.live_count:
                self.release_barrier()
            # A spinning thread may wait for a store by its own block: go on as long as anything changes.
            elif not self.release_teams() and (grid.progress == before or not self.spinning):
                break
        # Another block may free threads that spin, or that wait at the cluster's barrier or at a grid sync.
        waits_for_others = self.spinning or self.at_cluster or len(self.at_grid_sync) == self.live_count
        if self.live_count and not waits_for_others:
            if grid.cuda.observer is not None:
                grid.cuda.observer.hangs([self])
            raise DeadlockError(describe_waiting("deadlock", grid.kernel_name, [self]))

    def release_barrier(self) -> None:
        """Let all threads of the block go on from their barrier.

        Raises BarrierError when they stand at barriers of different kinds.
        """
        arrived, self.arrived = self.arrived, []
        first = arrived[0]
        if (observer := self.grid.cuda.observer) is not None:
            observer.barrier(self, arrived)
        for thread in arrived:
            if thread.operation != first.operation:
                raise BarrierError(
                    f"threads of {first.block.grid.kernel_name!r} wait together at two kinds of barrier:\n"
                    f"  {first.operation} at {place(first.frame)}  ({first.name})\n"
                    f"  {thread.operation} at {place(thread.frame)}  ({thread.name})"
                )
        # A plain barrier has no result: most kernels use no other, so the list of predicates is not built for it.
        if first.operation != "syncthreads":
            result = BARRIER_RESULTS[first.operation]([bool(thread.given) for thread in arrived])
            for thread in arrived:
                thread.result = result
        self.wake(arrived)
        self.grid.progress += 1

    def release_teams(self) -> bool:
        """Let the threads of every complete team go on from its barrier; return whether there was one.

        Raises SimulationError if only some lanes of a warp have come, because a GPU would count all of its lanes.
        """
        # PTX's bar.sync counts threads and does not know which ones: the first `count` threads are the team. Each
        # thread brings the count as `given`.
        complete = [number for number, waiting in self.at_team.items() if len(waiting) == waiting[0].given]
        for number in complete:
            group = self.at_team[number]
            members = set(group)
            # bar.sync counts in units of warps. A part of a warp would count as 32 threads on a GPU and let the team go
            # too early.
            for warp in {thread.warp for thread in group}:
                if not members.issuperset(warp.threads):
                    raise SimulationError(
                        f"only some lanes of a warp come to barrier {number}, of which a GPU counts all: "
                        f"{place(group[0].frame)}  ({group[0].name})"
                    )
            if (observer := self.grid.cuda.observer) is not None:
                observer.team_meets(number, group)
            # In the order of the lanes, so that a warp runs its lanes the same way whatever order they came in.
            for thread in sorted(self.at_team.pop(number), key=lambda thread: thread.lane):
                thread.go_on()
            self.grid.progress += 1
        return bool(complete)

    def wake(self, threads: list[Thread]) -> None:
        """Let all live threads of the block go on; `threads` are the live threads, which have met at a barrier.

        The ready list of each warp is replaced as a whole, because appending thread by thread costs more.
        """
        for thread in threads:
            thread.operation = None
        for warp in self.warps:
            warp.ready = list(warp.live)


BARRIER_RESULTS: dict[str | None, Callable[[list[bool]], int]] = {
    "syncthreads_count": sum,
    "syncthreads_and": lambda given: int(all(given)),
    "syncthreads_or": lambda given: int(any(given)),
}
