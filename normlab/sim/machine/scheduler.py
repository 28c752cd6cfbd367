"""Run a launch: its clusters in the order of the schedule, and one thread after another.

A CUDA thread runs on a greenlet: a function call that can stop in the middle and go on later. A thread stops only
where CUDA threads meet (a barrier, a warp operation, a grid sync) or where it may be in a spin loop. When the thread
returns, its greenlet serves a thread of a later block, because making a new greenlet costs more than many a kernel
does in a thread. A greenlet never serves a later launch: when NumPy adds large arrays it follows the C stack back to
where the greenlet was started, and crashes if other calls have left something else there.

A warp runs its lanes one after another, each to its next stop, and then answers the warp operations whose lanes are all
there. A lane that stops hands over to the next lane directly; going back to the warp in between would take two
switches instead of one. A block runs its warps and then releases its barrier, a cluster runs its blocks in turns, a
grid its clusters. `launch.py` starts a `Grid`; the operations in `api.py`, `shuffles.py`, `teams.py` and `clusters.py`
stop its threads.

Every meeting is resolved in one function, which tells the observer (observe.py): `Warp.answer` (warp.py),
`Block.release_barrier` and `Block.release_teams` (block.py), `Cluster.release` (clusters.py), `Grid.release_grid_sync`.
"""

import contextvars
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

from normlab.sim.language.errors import BarrierError, DeadlockError, failing_array
from normlab.sim.machine.block import Block
from normlab.sim.machine.clusters import Cluster
from normlab.sim.machine.observed import ObservedArray
from normlab.sim.machine.threads import Dim3, Indices, Thread
from normlab.sim.machine.waiting import describe_waiting, variables

TURN = 64  # after so many atomics without a stop a thread may be in a spin loop: let another thread run
IDLE_ROUNDS = 8  # after so many rounds over the grid in which all threads spin and nothing changes: a livelock

Order = Callable[[Any], Any]  # from a sequence to its items in another order


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
        # One generator for a whole launch: a new permutation at each turn, and the same run for the same seed.
        random = Random(int(schedule))
        return lambda items: random.sample(items, len(items))
    raise ValueError(f"schedule must be 'forward', 'reverse' or an int seed, not {schedule!r}")


class Grid:
    """One launch: runs its clusters in the order of the schedule, and resolves grid syncs."""

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
        # The caller's greenlet, on which the scheduler itself runs; threads switch back to it.
        self.hub = getcurrent()
        self.turns: Iterator[Thread] = iter(())  # the lanes of the running warp whose turn is still to come
        self.idle: list[greenlet] = []  # fibers whose threads have returned, for threads of later blocks
        self.over = False  # tells idle fibers to return, which takes half the time of throwing an error into them
        self.progress = 0  # counts events that do not happen in a livelock: meetings, changes of memory, returns
        self.parked: list[Cluster] = []  # the clusters that have begun and not ended
        # A GPU has no floating-point warnings. NumPy's setting is a context variable, and every greenlet has a context.
        with np.errstate(all="ignore"):
            self.context = contextvars.copy_context()

    def fiber(self) -> greenlet:
        """Return a greenlet for one thread."""
        if self.idle:
            return self.idle.pop()
        fiber = greenlet(self.body)
        # All fibers share one context, in which NumPy's warnings are off.
        fiber.gr_context = self.context
        return fiber

    def body(self) -> None:
        """Run the kernel for one thread after another; the function of every fiber."""
        while True:
            # The kernel's whole run for one thread. It may switch to other greenlets many times before it returns.
            self.call()
            thread: Thread = self.cuda.current
            warp = thread.warp
            # From here on barriers and warp operations no longer wait for this thread.
            warp.live.remove(thread)
            warp.live_mask &= ~(1 << thread.lane)
            # A thread that returns counts as arrived at every later barrier; `missing` is computed from live threads
            # alone.
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
        """Run every block to its end, and unwind every thread, even if a kernel raises an exception."""
        try:
            for index in self.order(self.cluster_indices):
                # Clusters begin one after another, and a finished one is forgotten: memory does not grow with the grid.
                self.parked.append(self.begin_cluster(index))
                self.run_cluster(self.parked[-1])
            # All clusters have begun by now, so clusters that wait for each other can go on in turns.
            self.run_parked()
        except BaseException as error:
            self.annotate(error)
            raise
        finally:
            self.turns = iter(())
            # Collected first: unwinding a fiber changes the lists of its block.
            live = [thread.fiber for block in self.live_blocks for thread in block.threads if thread.fiber is not None]
            for fiber in live:
                end(fiber)
            self.over = True
            # A greenlet that is never switched to again would keep its stack until Python collects it.
            for fiber in self.idle:
                fiber.switch()

    def begin_cluster(self, index: Dim3) -> Cluster:
        """Make the blocks of the cluster at `index`, and tell the observer of each."""
        cluster = Cluster()
        for x in range(index.x * self.cluster, (index.x + 1) * self.cluster):
            block = Block(self, Dim3(x, index.y, index.z), cluster)
            cluster.blocks.append(block)
            if self.cuda.observer is not None:
                self.cuda.observer.block_begins(block)
        return cluster

    def run_cluster(self, cluster: Cluster) -> None:
        """Run the blocks of a cluster in turns until each has ended or waits for another cluster.

        Raises DeadlockError when threads wait at the cluster's barrier for threads that cannot come there any more.
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
            # A single block has run as far as it can alone. Several go on as long as one of them changes something.
            elif len(live) <= 1 or self.progress == before:
                break
        live = cluster.live
        if not live:
            self.parked.remove(cluster)
        # Threads at the cluster's barrier can be freed by their own cluster alone, unless one of its blocks spins on
        # memory.
        elif any(block.at_cluster for block in live) and not any(block.spinning for block in live):
            if self.cuda.observer is not None:
                self.cuda.observer.hangs(live)
            raise DeadlockError(describe_waiting("deadlock", self.kernel_name, live))

    @property
    def live_blocks(self) -> list[Block]:
        """Return the blocks that have begun and not ended."""
        return [block for cluster in self.parked for block in cluster.live]

    def run_parked(self) -> None:
        """Run the blocks that wait for each other, by grid sync or by spinning, until none is left."""
        idle = 0  # rounds in a row in which nothing has changed
        while self.parked:
            before = self.progress
            # A grid sync can be complete only here: all clusters have begun, so no further thread can come to it.
            if all(len(block.at_grid_sync) == block.live_count for block in self.live_blocks):
                self.release_grid_sync()
            for cluster in self.order(list(self.parked)):
                self.run_cluster(cluster)
            idle = 0 if self.progress != before else idle + 1
            if idle == IDLE_ROUNDS:
                if self.cuda.observer is not None:
                    self.cuda.observer.hangs(self.live_blocks)
                raise DeadlockError(
                    describe_waiting("livelock: nothing changes any more", self.kernel_name, self.live_blocks)
                )

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
        # No lane is left in this turn of the warp: back to `Warp.run`, which looks for complete warp operations.
        if thread is None:
            self.hub.switch()
        else:
            cuda = self.cuda
            # The two attributes that differ from lane to lane. A kernel reads threadIdx often, so it is stored and not
            # looked up.
            cuda.threadIdx = thread.index
            cuda.current = thread
            thread.fiber.switch()  # type: ignore[union-attr]  # a thread in `turns` has not returned

    def stop(self, thread: Thread, operation: str) -> None:
        """Stop the running `thread` at `operation`; return when the operation has been resolved."""
        thread.operation = operation
        self.hand_over()

    def spin(self, thread: Thread, address: Any = None, seen: Any = None) -> None:
        """Count an atomic of the running `thread` that left `seen` as it was; after TURN of them, let others run."""
        if thread.polled.get(address) != seen:  # another thread has changed it: no livelock
            thread.polled[address] = seen
            self.progress += 1
        thread.spins += 1
        if thread.spins >= TURN:
            thread.spins = TURN - 1  # a thread that waits in vain gives way at once the next time
            # A loop over an array's elements goes on although none of them is, say, a new maximum.
            state = variables(sys._getframe(), deciding=True)
            if thread.polled.get("loops") != state:
                thread.polled["loops"] = state
                self.progress += 1
            self.give_way(thread)

    def turn(self, thread: Thread) -> None:
        """Count what may be one turn of a spin loop without an atomic, unless a variable of the thread has changed."""
        if thread.spins < TURN - 1:
            thread.spins += 1
        else:
            # Reading all variables takes long, so it begins only after TURN calls that may be a spin loop.
            self.spin(thread, "variables", variables(sys._getframe()))

    def update(self, thread: Thread) -> None:
        """Count an atomic of the running `thread` that changed memory; a loop of these may wait for others."""
        self.progress += 1
        thread.spins, thread.updates = 0, thread.updates + 1
        # A loop of updates may be a lock taken again and again by one thread, while the others wait for it.
        if thread.updates % TURN == 0:
            self.give_way(thread)

    def give_way(self, thread: Thread) -> None:
        """Let every other thread run before `thread` goes on."""
        thread.warp.spinning.append(thread)
        self.stop(thread, "a spin loop")
        thread.operation = None

    def annotate(self, error: BaseException) -> None:
        """Note kernel, block and thread on an exception that came out of a kernel."""
        thread: Any = getattr(self.cuda, "current", None)  # there is none before the first thread runs
        # Only a thread whose own greenlet has died with the error is to blame: others may have stopped anywhere.
        failed = thread is not None and thread.fiber is not None and thread.fiber.dead
        if failed and not isinstance(error, (DeadlockError, BarrierError)):
            # NumPy's message has the index and the extent, and lacks the array's name.
            if isinstance(error, IndexError):
                self.annotate_index(error, thread)
            error.add_note(f"in kernel {self.kernel_name!r}, {thread.name}")

    def annotate_index(self, error: IndexError, thread: Thread) -> None:
        """Note which array an index lies outside of."""
        name, array = failing_array(error) or ("", None)
        if isinstance(array, (np.ndarray, ObservedArray)):
            kind = "shared array" if any(array is shared for shared in thread.block.shared.values()) else "array"
            error.add_note(f"{name!r} is {'a' if kind[0] == 's' else 'an'} {kind} of shape {array.shape}")


def end(fiber: greenlet) -> None:
    """Unwind a stopped fiber, so that none of its frames and references outlives the launch."""
    while not fiber.dead:  # a `finally` in the kernel may stop at another barrier
        with suppress(Exception):
            fiber.throw(GreenletExit)
