"""Simulate thread-block clusters: blocks that meet at a barrier and reach each other's shared memory.

The scheduler runs one `Cluster` after another; in a launch without clusters each has one block. The functions below
run in the simulator in the place of `normlab.engine`'s intrinsics of the same names: `cluster_rank`, `cluster_sync`,
`cluster_arrive`, `cluster_arrive_shared`, `cluster_wait`, `store_to_block` and `load_from_block`.
"""

from typing import Any

from normlab.sim.language.errors import SimulationError
from normlab.sim.machine.memory import fresh
from normlab.sim.protocols import Cuda, Thread

MAX_CLUSTER = 16  # blocks, on an H200; a kernel has to ask for more than 8


class Cluster:
    """Blocks that are resident together and share a barrier: neighbours along x, in the order of their ranks.

    A thread first arrives at the barrier. It waits there at once (`cluster_sync`) or later (`cluster_arrive`, then
    `cluster_wait`). The barrier is passed when at least one thread waits and all threads that have not returned have
    arrived. Then the waiting threads go on, and later arrivals count for the next passing.
    """

    __slots__ = ("arrived", "blocks", "meetings")

    def __init__(self) -> None:
        """Start without blocks."""
        self.blocks: list[Any] = []  # of Block
        self.meetings = 0  # how often the barrier has been passed
        self.arrived: set[Thread] = set()  # since the barrier was last passed; a thread that returns is taken out

    @property
    def live(self) -> list[Any]:
        """Return the blocks that have not ended."""
        return [block for block in self.blocks if block.live_count]

    @property
    def missing(self) -> int:
        """Return how many threads have neither arrived at the barrier nor returned."""
        return sum(block.live_count for block in self.blocks) - len(self.arrived)

    def meets(self) -> bool:
        """Return whether at least one thread waits at the barrier, and every thread has arrived or returned."""
        # All may have arrived while no thread waits yet: then the first one that waits completes the passing.
        return any(block.at_cluster for block in self.blocks) and not self.missing

    def release(self) -> None:
        """Let all threads that wait at the barrier go on."""
        # Ended blocks take no part: their threads count as arrived, and no clock of theirs is asked again.
        live = self.live
        grid = live[0].grid
        if grid.cuda.observer is not None:
            grid.cuda.observer.cluster_meets(live)
        self.meetings += 1
        # Before the threads go on: one of them may arrive for the next passing at once.
        self.arrived.clear()
        for block in live:
            waiting, block.at_cluster = block.at_cluster, []
            for thread in sorted(waiting, key=lambda thread: thread.lane):
                thread.go_on()
        grid.progress += 1


def cluster_rank(cuda: Cuda) -> int:
    """Return the number of the running thread's block in its cluster."""
    block = cuda.current.block
    return block.cluster.blocks.index(block)


def cluster_sync(cuda: Cuda) -> None:
    """Arrive at the cluster's barrier and wait there."""
    cluster_arrive(cuda)
    _wait(cuda, "cluster_sync")


def cluster_arrive(cuda: Cuda) -> None:
    """Arrive at the cluster's barrier, and go on. Raises SimulationError for a second arrival without a wait."""
    # barrier.cluster.arrive has release semantics by default, which make stores to other blocks visible.
    cuda.current.stored_remotely = False
    _arrive(cuda)


def cluster_arrive_shared(cuda: Cuda) -> None:
    """Arrive at the cluster's barrier, and go on; on a GPU this orders only stores to the own block's shared memory.

    The simulator orders all stores, and does not find a kernel that relies on more than a GPU orders. The exception is
    a store to another block: after it, this raises SimulationError.
    """
    # On a GPU no thread could rely on the stored value: the fence of this arrival covers the own block's memory alone.
    if cuda.current.stored_remotely:
        raise SimulationError(
            "cluster_arrive_shared does not say that a store to another block is done; cluster_arrive does"
        )
    _arrive(cuda)


def _arrive(cuda: Cuda) -> None:
    thread = cuda.current
    if thread.arrival is not None:
        raise SimulationError("cluster_arrive comes a second time, without a cluster_wait after the first one")
    cluster = thread.block.cluster
    # Not a flag but a count: a wait has to tell the passing that it waits for from an earlier one.
    thread.arrival = cluster.meetings
    cluster.arrived.add(thread)
    # An arrival may be what other blocks wait for, so a round with one in it is no deadlock.
    cuda.grid_run.progress += 1
    if cuda.observer is not None:
        cuda.observer.cluster_arrive(thread)


def cluster_wait(cuda: Cuda) -> None:
    """Wait until all threads of the cluster that have not returned have arrived at its barrier."""
    _wait(cuda, "cluster_wait")


def _wait(cuda: Cuda, operation: str) -> None:
    thread = cuda.current
    if thread.arrival is None:
        raise SimulationError("cluster_wait comes without a cluster_arrive before it")
    if thread.arrival == thread.block.cluster.meetings:  # the barrier has not been passed since the thread arrived
        thread.block.at_cluster.append(thread)
        cuda.grid_run.stop(thread, operation)
    thread.arrival = None  # from here on the thread may arrive for the next passing
    if cuda.observer is not None:
        cuda.observer.cluster_wait(thread)


def store_to_block(cuda: Cuda, array: Any, index: Any, value: Any, rank: Any) -> None:
    """Do `array[index] = value` on the copy of the shared `array` that block `rank` of the cluster has."""
    remote = _in_block(cuda, array, index, int(rank), "write")
    cuda.current.stored_remotely = True
    if remote is not None:
        remote[index] = value


def load_from_block(cuda: Cuda, array: Any, index: Any, rank: Any) -> Any:
    """Return `array[index]` of the copy of the shared `array` that block `rank` of the cluster has.

    Where an observer has refused the access, return garbage: NaN or a large integer.
    """
    remote = _in_block(cuda, array, index, int(rank), "read")
    return fresh((1,), array.dtype)[0] if remote is None else remote[index]


def _in_block(cuda: Cuda, array: Any, index: Any, rank: int, operation: str) -> Any:
    """Return block `rank`'s copy of the running thread's shared `array`.

    Raises SimulationError for a rank that is not in the cluster, for an array that is not shared, and for a block that
    has ended. An observer may note the access to a block that has ended as a finding instead: then return None.
    """
    blocks = cuda.current.block.cluster.blocks
    if not 0 <= rank < len(blocks):
        raise SimulationError(f"there is no block {rank} in a cluster of {len(blocks)}: ranks go from 0 on")
    owner = blocks[rank]
    # mapa maps a shared address of one block to the same offset in another block's memory.
    remote = cuda.shared.counterpart(array, owner)
    if remote is None:
        raise SimulationError("only shared memory can be reached in another block of the cluster, not this array")
    observer = cuda.observer
    # An ended block's shared memory may belong to a new block already; CUDA leaves such an access undefined.
    if not owner.live_count:
        if observer is not None and observer.refuse_remote(remote, index, operation):
            return None
        raise SimulationError(
            f"block {owner.index}, rank {rank} of the cluster, has ended, and its shared memory with it: a "
            "cluster_sync at the end keeps it until the others are done"
        )
    return remote if observer is None else observer.remote(remote, index, operation)
