"""Simulate asynchronous copies: the twins of an engine's `copy_async`, `commit_copies` and `wait_copies`.

On a GPU a copy arrives at any time between its start and the wait for it. Here it reads its source at its start and
arrives as late as it may: at the `wait_copies` that covers its group, and never if there is none. So a thread that
reads the target too early finds the old contents, in every schedule.
"""

from typing import Any

from normlab.sim.language.errors import SimulationError
from normlab.sim.machine.observe import Copy
from normlab.sim.machine.observed import plain_array
from normlab.sim.machine.vector import WIDEST, neighbours, vector_key
from normlab.sim.protocols import Cuda


class Copies:
    """A thread's copies under way: in groups, the oldest first, and those not yet committed to a group."""

    __slots__ = ("groups", "ungrouped")

    def __init__(self) -> None:
        """Start with nothing."""
        self.groups: list[list[Copy]] = []
        self.ungrouped: list[Copy] = []


def copy_async(cuda: Cuda, target: Any, target_index: Any, source: Any, source_index: Any, width: int) -> None:
    """Start to copy, from global into shared memory, as many bytes as `width` neighbours in `target` have.

    Raises SimulationError where a GPU's compiler or the GPU would refuse: a size or an alignment that no instruction
    has, a target that is not shared, a source that is. Raises IndexError outside of the arrays.
    """
    plain, plain_source, width = plain_array(target), plain_array(source), int(width)
    size = width * plain.itemsize
    # cp.async has sizes of 4, 8 and 16 bytes; a wider copy is several instructions.
    if (size not in (4, 8) and (size % WIDEST or not size)) or size % plain_source.itemsize:
        raise SimulationError(
            f"copy_async moves 4, 8 or 16 bytes at a time and whole elements, but {width} x {plain.dtype} are {size} "
            f"bytes, to come from elements of {plain_source.dtype}"
        )
    source_width = size // plain_source.itemsize
    copies = "copy_async copies from global into shared memory; its"
    if not cuda.shared.holds(plain):
        raise SimulationError(f"{copies} target is in global memory")
    if cuda.shared.holds(plain_source):
        raise SimulationError(f"{copies} source is in shared memory")
    # cp.async needs both addresses at a multiple of its size; `vector_key` raises where one is not.
    key, source_key = vector_key(target, target_index, width), vector_key(source, source_index, source_width)
    if cuda.observer is None:
        values = neighbours(plain_source, source_key, source_width)
        # The source's bits are copied now. They reach the target in `wait_copies`, so an early read finds the old
        # contents.
        copy: Copy | None = Copy(neighbours(plain, key, width), values.view(plain.dtype).copy())
    else:
        copy = cuda.observer.begin_copy((target, key, width), (source, source_key, source_width))
    # An observer that has noted a copy outside of its arrays returns None; the launch goes on without it.
    if copy is not None:
        _copies_of(cuda).ungrouped.append(copy)


def commit_copies(cuda: Cuda) -> None:
    """Make a group of the copies that the running thread has started since the last one."""
    copies = _copies_of(cuda)
    # An empty group counts too: wait_copies counts groups, and a kernel commits one per turn of its loop.
    copies.groups.append(copies.ungrouped)
    copies.ungrouped = []


def wait_copies(cuda: Cuda, pending: int) -> None:
    """Let the running thread's groups arrive, except the latest `pending`."""
    # cp.async.wait_group takes a count of groups that may stay under way; ptxas refuses a negative one.
    if pending < 0:
        raise SimulationError(f"wait_copies leaves 0 groups or more on their way, not {pending}")
    groups = _copies_of(cuda).groups
    # Oldest first, as the hardware completes groups in the order of their commits.
    for _ in range(len(groups) - pending):
        for copy in groups.pop(0):
            copy.target[...] = copy.values
            if cuda.observer is not None:
                cuda.observer.end_copy(copy)


def _copies_of(cuda: Cuda) -> Copies:
    thread = cuda.current
    if thread.copies is None:
        thread.copies = Copies()
    return thread.copies
