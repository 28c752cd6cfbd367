"""Threads, warps and blocks, and who runs next.

A CUDA thread runs on a greenlet: a function call that can stop in the middle and go on later. It stops only where CUDA
threads meet (a barrier, a warp operation, a grid sync) or where it spins on an atomic; when it returns, its greenlet
serves a thread of a later block, because a new one costs more than many a kernel does in it. (Not of a later launch:
NumPy, when it adds large arrays, follows the C stack back beyond the greenlet's own frames, to where it was started,
and dies where other calls have left something else there.) A warp runs its lanes one after another, each to its next
stop (where it hands over to the next lane; by way of the warp it were two switches), then resolves the warp operations
whose lanes are all there; a block runs its warps, then releases its barrier; a cluster runs its blocks in turns, a grid
its clusters. `launch.py` starts a `Grid`, the operations in `api.py`, `warp.py`, `teams.py` and `clusters.py` stop its
threads.

Every meeting is resolved in one place, and there an observer (observe.py) hears of it: `Warp.answer`,
`Block.release_barrier`, `Block.release_teams`, `Cluster.release` (clusters.py), `Grid.release_grid_sync`.
"""

import contextvars
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from types import FrameType
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

from normlab.sim.clusters import Cluster
from normlab.sim.errors import (
    BarrierError,
    DeadlockError,
    SimulationError,
    calling_frame,
    failing_array,
    is_machinery,
    place,
)
from normlab.sim.observed import ObservedArray
from normlab.sim.warp import RESOLVERS

WARP_SIZE = 32
TURN = 64  # so many atomics without a stop may be a spin loop: let another thread run
SMALL = 4096  # bytes: a larger array is not looked into for changes
IDLE_ROUNDS = 8  # so many rounds over the whole grid in which all threads spin and nothing changes are a livelock

Order = Callable[[Any], Any]  # a sequence to a sequence


def schedule_order(schedule: str | int) -> Order:
    """Return the function that puts blocks, warps or lanes (a list in index order) into the order they run in.

    `schedule`: "forward", "reverse", or an int, the seed of a fresh permutation at every turn.
    Raises ValueError for anything else.
    """
    if schedule == "forward":
        return lambda items: items
    if schedule == "reverse":
        return lambda items: items[::-1]
    if isinstance(schedule, (int, np.integer)) and not isinstance(schedule, bool):
        random = Random(int(schedule))
        return lambda items: random.sample(items, len(items))
    raise ValueError(f"schedule must be 'forward', 'reverse' or an int seed, not {schedule!r}")


class Dim3:
    """Three ints, x fastest: an index or an extent."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x: int, y: int, z: int):
        """Hold x, y and z."""
        self.x, self.y, self.z = x, y, z

    def __iter__(self) -> Iterator[int]:
        """Walk through x, y, z."""
        return iter((self.x, self.y, self.z))

    def __repr__(self) -> str:
        """Print as CUDA programmers write it."""
        return f"({self.x}, {self.y}, {self.z})"


class Indices(Sequence[Dim3]):
    """Every index below an extent in linear order, each made when it is asked for."""

    def __init__(self, extent: Dim3):
        """Have `extent` along x, y and z."""
        self._extent = extent

    def __len__(self) -> int:
        """Return the number of indices."""
        return self._extent.x * self._extent.y * self._extent.z

    def __getitem__(self, key: Any) -> Any:
        """Return one, or a list for a slice."""
        columns, rows, layers = self._extent
        if isinstance(key, slice):  # nearly always of all of a block
            return [Dim3(x, y, z) for z in range(layers) for y in range(rows) for x in range(columns)][key]
        rest, x = divmod(range(len(self))[key], columns)
        z, y = divmod(rest, rows)
        return Dim3(x, y, z)


class Thread:
    """One CUDA thread, and the `fiber` that it runs on until it returns.

    While it is stopped, `operation` names what it waits at, `mask` the lanes that a warp operation is about, `given`
    what it brought; whoever resolves the operation puts its answer into `result`.
    """

    __slots__ = (
        *("arrival", "block", "copies", "fiber", "given", "index", "lane", "mask", "operation", "polled", "result"),
        *("seen", "spins", "stored_remotely", "updates", "warp"),
    )

    def __init__(self, fiber: greenlet, index: Dim3, lane: int, warp: "Warp", block: "Block"):
        """Be ready to run on `fiber`."""
        self.fiber: greenlet | None = fiber
        self.index, self.lane, self.warp, self.block = index, lane, warp, block
        self.operation: str | None = None
        self.mask, self.spins, self.updates = 0, 0, 0
        self.given: Any = None
        self.result: Any = None
        self.polled: dict[Any, Any] = {}  # address → value, of the atomics that changed nothing
        self.copies: Any = None  # those on their way (asynchronous.py)
        self.arrival: int | None = None  # at the cluster's barrier, after it had been passed so often
        self.stored_remotely = False  # in another block of the cluster, since the last cluster_arrive
        self.seen: Any = None  # the observer's own

    @property
    def frame(self) -> FrameType | None:
        """Where the thread has stopped; None if it has not begun or has returned."""
        return None if self.fiber is None else self.fiber.gr_frame

    def throw(self, error: Exception) -> None:
        """Raise `error` where the thread has stopped."""
        assert self.fiber is not None, "only a thread that has not returned stands somewhere"
        self.fiber.throw(error)

    def go_on(self) -> None:
        """Run when the warp runs again."""
        self.operation = None
        self.warp.ready.append(self)

    @property
    def name(self) -> str:
        """The thread's block and thread index, as errors print them."""
        return f"block {self.block.index}, thread {self.index}"


class Warp:
    """Thirty-two threads (the last warp of a block may have fewer) that shuffle and vote among themselves."""

    __slots__ = ("block", "live", "live_mask", "ready", "seen", "spinning", "threads", "waiting")

    def __init__(self, block: "Block"):
        """Start without threads."""
        self.block = block
        self.seen: Any = None  # the observer's own
        self.threads: list[Thread] = []
        self.live: list[Thread] = []
        self.live_mask = 0
        self.ready: list[Thread] = []
        self.waiting: list[Thread] = []  # at a warp operation
        self.spinning: list[Thread] = []  # gave way in a spin loop, runs again in the next turn

    def run(self) -> None:
        """Run the lanes until each has returned, spins, or waits for more than this warp can give."""
        grid = self.block.grid
        self.ready, self.spinning = self.ready + self.spinning, []
        while True:
            ready, self.ready = grid.order(self.ready), []
            grid.turns = iter(ready)
            grid.hand_over()  # comes back when the last of them has stopped
            if not (self.waiting and self.resolve()):
                return

    def resolve(self) -> bool:
        """Answer the warp operations whose lanes are all there; return whether there was one.

        Lanes belong together when operation and mask agree; their call sites may differ (as on Volta and later). An
        `activemask` names no lanes to wait for, so it is answered last, for the lanes that stand at one call site.
        """
        first, *others = self.waiting
        operation, mask = first.operation, first.mask
        if len(others) + 1 == (mask & self.live_mask).bit_count() and operation != "activemask":
            for thread in others:
                if thread.operation != operation or thread.mask != mask:
                    break
            else:  # all are in one group, as nearly always
                self.answer(self.waiting)
                return True
        groups: dict[tuple, list[Thread]] = {}
        for thread in self.waiting:
            groups.setdefault((thread.operation, thread.mask), []).append(thread)
        complete = [
            group
            for (operation, mask), group in groups.items()
            if operation != "activemask" and len(group) == (mask & self.live_mask).bit_count()
        ]
        if not complete:
            sites: dict[tuple, list[Thread]] = {}
            for thread in groups.get(("activemask", 0), ()):
                sites.setdefault(thread.given, []).append(thread)
            complete = list(sites.values())
        for group in complete:
            self.answer(group)
        return bool(complete)

    def answer(self, group: list[Thread]) -> None:
        """Give every thread of a complete `group` its result, and let it run on."""
        if group[0].operation != "activemask":  # which waits for nobody
            self.block.grid.progress += 1
            if (observer := self.block.grid.cuda.observer) is not None:
                observer.meeting(group)
        RESOLVERS[group[0].operation]({thread.lane: thread for thread in group})
        for thread in group:
            thread.operation = None
        if len(group) == len(self.live):  # in the order of the lanes, and nobody else is there
            self.waiting, self.ready = [], list(self.live)
        else:
            self.waiting = [thread for thread in self.waiting if thread.operation is not None]
            self.ready = sorted(self.ready + group, key=lambda thread: thread.lane)


class Block:
    """The threads of one block, its barrier and its shared memory."""

    def __init__(self, grid: "Grid", index: Dim3, cluster: Cluster):
        """Make the threads of the block; none has run yet."""
        self.grid, self.index, self.cluster = grid, index, cluster
        self.seen: Any = None  # the observer's own
        self.shared: dict[Any, np.ndarray] = {}  # filled by memory.py
        self.shared_spans: list[tuple[int, int, Any]] = []  # of each: begin, end, key
        self.static_bytes = 0  # of its arrays of fixed shape
        self.arrived: list[Thread] = []  # at a block barrier
        self.at_team: dict[int, list[Thread]] = {}  # at a team's barrier, by its number
        self.at_cluster: list[Thread] = []  # at the cluster's barrier
        self.at_grid_sync: list[Thread] = []
        self.warps: list[Warp] = []
        threads = grid.thread_indices
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
        """Whether a thread is in a spin loop and may be freed by another block."""
        return any(warp.spinning for warp in self.warps)

    def run(self) -> None:
        """Run until every thread has returned or waits for another block.

        Raises DeadlockError when the threads that are left wait for each other.
        """
        grid = self.grid
        grid.cuda.blockIdx = self.index
        while self.live_count:
            before = grid.progress
            for warp in grid.order(self.warps):
                if warp.ready or warp.spinning:
                    warp.run()
            if self.arrived and len(self.arrived) == self.live_count:
                self.release_barrier()
            elif not self.release_teams() and (grid.progress == before or not self.spinning):
                break
        waits_for_others = self.spinning or self.at_cluster or len(self.at_grid_sync) == self.live_count
        if self.live_count and not waits_for_others:
            if grid.cuda.observer is not None:
                grid.cuda.observer.hangs([self])
            raise DeadlockError(grid.describe_waiting("deadlock", [self]))

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
        if first.operation != "syncthreads":
            result = BARRIER_RESULTS[first.operation]([bool(thread.given) for thread in arrived])
            for thread in arrived:
                thread.result = result
        self.wake(arrived)
        self.grid.progress += 1

    def release_teams(self) -> bool:
        """Let the threads go on at each team's barrier that all have come to; return whether there was one.

        Raises SimulationError for a part of a warp, of which a GPU would count all lanes.
        """
        complete = [number for number, waiting in self.at_team.items() if len(waiting) == waiting[0].given]
        for number in complete:
            group = self.at_team[number]
            members = set(group)
            for warp in {thread.warp for thread in group}:
                if not members.issuperset(warp.threads):
                    raise SimulationError(
                        f"only some lanes of a warp come to barrier {number}, of which a GPU counts all: "
                        f"{place(group[0].frame)}  ({group[0].name})"
                    )
            if (observer := self.grid.cuda.observer) is not None:
                observer.team_meets(number, group)
            for thread in sorted(self.at_team.pop(number), key=lambda thread: thread.lane):
                thread.go_on()
            self.grid.progress += 1
        return bool(complete)

    def wake(self, threads: list[Thread]) -> None:
        """Let all live threads go on, which have met somewhere."""
        for thread in threads:
            thread.operation = None
        for warp in self.warps:
            warp.ready = list(warp.live)


BARRIER_RESULTS: dict[str | None, Callable[[list[bool]], int]] = {
    "syncthreads_count": sum,
    "syncthreads_and": lambda given: int(all(given)),
    "syncthreads_or": lambda given: int(any(given)),
}


class Grid:
    """One launch: its clusters in the order of the schedule, and the moment in which all blocks meet."""

    def __init__(
        self,
        cuda: Any,
        kernel_name: str,
        call: Callable[[], None],
        grid: Dim3,
        block: Dim3,
        order: Order,
        cluster: int = 1,
    ):
        """Prepare the launch of `call` over `grid` blocks, `cluster` to a cluster along x, of `block` threads."""
        self.cuda, self.kernel_name, self.call, self.order = cuda, kernel_name, call, order
        self.block_indices, self.thread_indices = Indices(grid), Indices(block)[:]
        self.cluster, self.cluster_indices = cluster, Indices(Dim3(grid.x // cluster, grid.y, grid.z))
        self.hub = getcurrent()
        self.turns: Iterator[Thread] = iter(())  # who runs next
        self.idle: list[greenlet] = []  # fibers whose threads have returned
        self.over = False  # idle fibers are to return, too: half the time that throwing an error into them takes
        self.progress = 0  # counts what cannot happen in a livelock
        self.parked: list[Cluster] = []  # those that have not ended
        with np.errstate(
            all="ignore"
        ):  # a GPU has no floating-point warnings; greenlets start with a context of their own
            self.context = contextvars.copy_context()

    def fiber(self) -> greenlet:
        """Return a greenlet for one thread."""
        if self.idle:
            return self.idle.pop()
        fiber = greenlet(self.body)
        fiber.gr_context = self.context
        return fiber

    def body(self) -> None:
        """Run the kernel for one thread after another; the function of every fiber."""
        while True:
            self.call()
            thread: Thread = self.cuda.current
            warp = thread.warp
            warp.live.remove(thread)
            warp.live_mask &= ~(1 << thread.lane)
            warp.block.cluster.arrived.discard(thread)
            warp.block.live_count -= 1
            self.progress += 1
            if self.cuda.observer is not None:
                self.cuda.observer.returned(thread)
            self.idle.append(thread.fiber)
            thread.fiber = None
            self.hand_over()
            if self.over:
                return

    def run(self) -> None:
        """Run every block to its end. Whatever is raised, in a kernel or here, leaves no thread behind."""
        try:
            for index in self.order(self.cluster_indices):
                self.parked.append(self.begin_cluster(index))
                self.run_cluster(self.parked[-1])
            self.run_parked()
        except BaseException as error:
            self.annotate(error)
            raise
        finally:
            self.turns = iter(())
            live = [thread.fiber for block in self.live_blocks for thread in block.threads if thread.fiber is not None]
            for fiber in live:
                end(fiber)
            self.over = True
            for fiber in self.idle:
                fiber.switch()

    def begin_cluster(self, index: Dim3) -> Cluster:
        """Return the blocks of the cluster at `index`; none has run yet."""
        cluster = Cluster()
        for x in range(index.x * self.cluster, (index.x + 1) * self.cluster):
            block = Block(self, Dim3(x, index.y, index.z), cluster)
            cluster.blocks.append(block)
            if self.cuda.observer is not None:
                self.cuda.observer.block_begins(block)
        return cluster

    def run_cluster(self, cluster: Cluster) -> None:
        """Run the blocks of a cluster in turns, as far as they come, and forget it when all are done.

        Raises DeadlockError when threads wait at the cluster's barrier for others that nobody lets come there.
        """
        while True:
            before = self.progress
            live = cluster.live
            for block in self.order(live) if len(live) > 1 else live:
                block.run()
                if not block.live_count and self.cuda.observer is not None:
                    self.cuda.observer.block_done(block)
            if cluster.meets():
                cluster.release()
            elif len(live) <= 1 or self.progress == before:
                break
        live = cluster.live
        if not live:
            self.parked.remove(cluster)
        elif any(block.at_cluster for block in live) and not any(block.spinning for block in live):
            if self.cuda.observer is not None:
                self.cuda.observer.hangs(live)
            raise DeadlockError(self.describe_waiting("deadlock", live))

    @property
    def live_blocks(self) -> list[Block]:
        """The blocks that have begun and not ended."""
        return [block for cluster in self.parked for block in cluster.live]

    def run_parked(self) -> None:
        """Run the blocks that wait for each other, by grid sync or by spinning, until none is left."""
        idle = 0
        while self.parked:
            before = self.progress
            if all(len(block.at_grid_sync) == block.live_count for block in self.live_blocks):
                self.release_grid_sync()
            for cluster in self.order(list(self.parked)):
                self.run_cluster(cluster)
            idle = 0 if self.progress != before else idle + 1
            if idle == IDLE_ROUNDS:
                if self.cuda.observer is not None:
                    self.cuda.observer.hangs(self.live_blocks)
                raise DeadlockError(self.describe_waiting("livelock: nothing changes any more", self.live_blocks))

    def release_grid_sync(self) -> None:
        """Let all threads of the grid go on from their grid sync."""
        if self.cuda.observer is not None:
            self.cuda.observer.grid_sync(self.live_blocks)
        for block in self.live_blocks:
            waiting, block.at_grid_sync = block.at_grid_sync, []
            block.wake(waiting)
        self.progress += 1

    def hand_over(self) -> None:
        """Let the next thread of this turn run, or if there is none, the scheduler."""
        thread = next(self.turns, None)
        if thread is None:
            self.hub.switch()
        else:
            cuda = self.cuda
            cuda.threadIdx = thread.index
            cuda.current = thread
            thread.fiber.switch()  # type: ignore[union-attr]  # who runs next has not returned

    def stop(self, thread: Thread, operation: str) -> None:
        """Stop the running `thread` at `operation`; returns when somebody has resolved it."""
        thread.operation = operation
        self.hand_over()

    def spin(self, thread: Thread, address: Any = None, seen: Any = None) -> None:
        """Count an atomic of the running `thread` that found `seen` and left it so; many in a row let others run."""
        if thread.polled.get(address) != seen:
            thread.polled[address] = seen
            self.progress += 1
        thread.spins += 1
        if thread.spins >= TURN:
            thread.spins = TURN - 1  # who waits in vain gives way at once the next time
            self.give_way(thread)

    def turn(self, thread: Thread) -> None:
        """Count what may be one turn of a spin loop without an atomic; it is none if a variable has changed."""
        if thread.spins < TURN - 1:
            thread.spins += 1
        else:
            self.spin(thread, "variables", variables(sys._getframe()))

    def update(self, thread: Thread) -> None:
        """Count an atomic of the running `thread` that changed memory; a loop of these may wait for others, too."""
        self.progress += 1
        thread.spins, thread.updates = 0, thread.updates + 1
        if thread.updates % TURN == 0:
            self.give_way(thread)

    def give_way(self, thread: Thread) -> None:
        """Let every other thread run before `thread` goes on."""
        thread.warp.spinning.append(thread)
        self.stop(thread, "a spin loop")
        thread.operation = None

    def annotate(self, error: BaseException) -> None:
        """Note kernel, block and thread on an exception that came out of a kernel."""
        thread: Any = getattr(self.cuda, "current", None)  # of nobody before the first runs
        failed = thread is not None and thread.fiber is not None and thread.fiber.dead
        if failed and not isinstance(error, (DeadlockError, BarrierError)):
            if isinstance(error, IndexError):
                self.annotate_index(error, thread)
            error.add_note(f"in kernel {self.kernel_name!r}, {thread.name}")

    def annotate_index(self, error: IndexError, thread: Thread) -> None:
        """Note which array an index lies outside of."""
        name, array = failing_array(error) or ("", None)
        if isinstance(array, (np.ndarray, ObservedArray)):
            kind = "shared array" if any(array is shared for shared in thread.block.shared.values()) else "array"
            error.add_note(f"{name!r} is {'a' if kind[0] == 's' else 'an'} {kind} of shape {array.shape}")

    def describe_waiting(self, what: str, blocks: list[Block]) -> str:
        """Return a report of where the threads of `blocks` wait, and for whom."""
        places: dict[tuple, list[Thread]] = {}
        returned = 0
        for block in blocks:
            for thread in block.threads:
                if thread.operation is None:
                    returned += 1
                else:
                    places.setdefault((thread.operation, place(thread.frame)), []).append(thread)
        lines = [f"{what} in kernel {self.kernel_name!r}:"]
        for (operation, where), threads in places.items():
            count = "1 thread" if len(threads) == 1 else f"{len(threads)} threads"
            lines.append(f"  {count} at {operation}, {where}  (e.g. {threads[0].name})")
            lines.append(f"    waits for {wanted(threads[0])}")
        if returned:
            lines.append(f"  {returned} of the threads have returned")
        return "\n".join(lines)


def variables(frame: FrameType | None) -> tuple:
    """Return what the local variables of the kernel, and of the device functions that it is in, hold now."""
    found: list[Any] = []
    frame = calling_frame(frame)
    while frame is not None and not is_machinery(frame):
        for value in frame.f_locals.values():
            if isinstance(value, ObservedArray):
                value = value.raw
            small = isinstance(value, np.ndarray) and value.nbytes <= SMALL
            found.append(value.tobytes() if small else str(value) if np.isscalar(value) else id(value))
        found.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(found)


def wanted(thread: Thread) -> str:
    """Say in words which threads the stopped `thread` waits for."""
    block = thread.block
    if thread in block.arrived:
        return f"{block.live_count - len(block.arrived)} more threads of its block to reach a barrier"
    for number, waiting in block.at_team.items():
        if thread in waiting:
            here, needed = len(waiting), thread.given
            return f"{needed - here} more threads: {here} of {needed} are at barrier {number}"
    if thread in block.at_cluster:
        return f"{block.cluster.missing} more threads of its cluster to arrive at its barrier"
    if thread in block.at_grid_sync:
        return "every thread of the grid that has not returned"
    if thread in thread.warp.waiting:
        at_it = {t.lane for t in thread.warp.waiting if (t.operation, t.mask) == (thread.operation, thread.mask)}
        missing = [t.lane for t in thread.warp.live if thread.mask >> t.lane & 1 and t.lane not in at_it]
        return f"{'lane' if len(missing) == 1 else 'lanes'} {', '.join(map(str, missing))} (mask {thread.mask:#010x})"
    return "a value that no thread writes"


def end(fiber: greenlet) -> None:
    """Unwind a stopped fiber, so that no frame and no reference outlives the launch."""
    while not fiber.dead:  # a `finally` in the kernel may stop at another barrier
        with suppress(Exception):
            fiber.throw(GreenletExit)
