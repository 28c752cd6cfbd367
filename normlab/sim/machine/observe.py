"""Define the observer of a launch, whose methods the simulator calls at every event.

A launch without an observer runs on plain NumPy arrays. With an observer, every array that a kernel sees is an
`ObservedArray` (observed.py), which asks the observer for each element. The scheduler, atomics and fences tell the
observer where threads meet. `trace` and `sanitize` each have an observer of their own.
"""

from ast import NodeTransformer
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from normlab.sim.language.arrays import is_record
from normlab.sim.language.paths import KERNEL_MARK
from normlab.sim.machine.observed import Buffer, ObservedArray, ObservedRecord, allocation_of, pointer
from normlab.sim.machine.vector import Part, neighbours
from normlab.sim.protocols import Cuda, LaneObserver

ALIGNMENT = 512  # bytes to which a GPU's allocator aligns


class Copy(NamedTuple):
    """An asynchronous copy that has not arrived yet."""

    target: np.ndarray  # the elements that it will write, as a view
    values: np.ndarray  # what it will write there, read when the copy began
    seen: Any = None  # whatever the observer keeps for this copy


class Observer:
    """Is told of every event of a launch. The methods here do what the kernel asks, and record nothing."""

    array_class: type[ObservedArray] = ObservedArray
    cuda: Cuda  # of the launch
    kernel_code: CodeType  # as it runs
    source_marks: tuple[type[NodeTransformer], ...] = ()  # what is put into the kernel's source, in this order

    def __init__(self) -> None:
        """Start without memory."""
        self._owners: dict[int, tuple[range, Any]] = {}  # by host address: device addresses and owner of an allocation
        self._end = ALIGNMENT  # of the memory in use on the imagined device; 0 is no address

    def attach(self, cuda: Cuda) -> None:
        """Watch the launch of `cuda`, which is about to begin."""
        self.cuda = cuda

    def marks(self, in_kernel: bool) -> dict[str, Any]:
        """Return the globals that marked functions call: the kernel, or (not `in_kernel`) functions that it calls."""
        return {}

    def lanes(self, cuda: Cuda, cluster: int) -> LaneObserver:
        """Return what the vectorised engine is to tell of the launch of `cuda`, `cluster` blocks to a cluster."""
        raise NotImplementedError(f"{type(self).__name__} observes one thread after another")

    # --- memory ------------------------------------------------------------------------------------------------------

    def adopt(self, value: Any, name: str) -> Any:
        """Return what a kernel sees of an argument that it calls `name`."""
        if isinstance(value, tuple):
            # Each array in a tuple is memory of its own name, such as "weights[1]". A namedtuple takes its parts one by
            # one, a plain tuple all in one.
            parts = [self.adopt(part, f"{name}[{position}]") for position, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        # Scalars are passed by value: no thread can change another thread's.
        if not isinstance(value, np.ndarray):
            return value
        address, allocation = self._device_address(value)
        buffer = Buffer(name, "global", value, address, allocation)
        self.add(buffer)
        array = self.array_class(value, buffer, self, buffer.address)
        return ObservedRecord(array, ()) if is_record(value) else array

    def _device_address(self, array: np.ndarray) -> tuple[int, range]:
        """Return where `array` begins on the imagined device, and the addresses of the allocation that it lies in."""
        start, size, owner = allocation_of(array)
        if start not in self._owners:
            # Keeping the owner alive keeps its address from being given to another array.
            self._owners[start] = range(self._end, self._end + size), owner
            # cudaMalloc aligns to 256 bytes at least and in practice to 512, so a vector access is aligned here where
            # it is there.
            self._end += -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        allocation = self._owners[start][0]
        return allocation.start + pointer(array) - start, allocation

    def made(self, array: np.ndarray, name: str, space: str, address: int, block: Any) -> ObservedArray:
        """Return a new shared or local array, in the memory of `block`, as the kernel sees it."""
        buffer = Buffer(name, space, array, address, block=block)
        self.add(buffer)
        return self.array_class(array, buffer, self, address)

    def add(self, buffer: Buffer) -> None:
        """Take note of memory that the kernel has from now on."""

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Return `array[key]`."""
        return self.value_of(array, key, array.raw[key])

    def value_of(self, array: ObservedArray, key: Any, value: Any) -> Any:
        """Return the result of indexing as the kernel sees it; views and records stay observed."""
        if isinstance(value, np.ndarray):
            return array.viewed(value)
        # A record is a view of its element: which field is read, and when, is seen at the attribute.
        return ObservedRecord(array, key) if isinstance(value, np.void) else value

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Do `array[key] = value`."""
        array.raw[key] = value.raw if isinstance(value, ObservedArray) else value

    def poll(self, array: ObservedArray, key: Any) -> Any:
        """Return `array[key]`, loaded by `ldcv`: the load sees what other threads' atomics have stored."""
        return array[key]

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Return the plain array and the index on which the running thread is to do its atomic operation."""
        return array.raw, key

    def exchange(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Do as `atomic`, for an operation whose new value does not depend on the old one."""
        return self.atomic(array, key)

    def updated(self, array: ObservedArray, key: Any) -> None:
        """Take note that the running thread's atomic operation has changed `array[key]`."""

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Return `width` neighbouring elements, loaded by one instruction."""
        return array.raw[(*key[:-1], slice(key[-1], key[-1] + width))]

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store neighbouring elements by one instruction."""
        array.raw[(*key[:-1], slice(key[-1], key[-1] + len(values)))] = values

    def begin_copy(self, target: Part, source: Part) -> Copy | None:
        """Return the copy of the bits of `source` that the running thread starts; None: it may not start it."""
        elements, values = (neighbours(array.raw, key, width) for array, key, width in (target, source))
        return Copy(elements, values.view(elements.dtype).copy())

    def end_copy(self, copy: Copy) -> None:
        """Take note that a copy has arrived, because the running thread has waited for it."""

    def remote(self, array: ObservedArray, key: Any, operation: str) -> ObservedArray:
        """Return another block's shared array as the running thread reaches it, for a "read" or "write" of `key`."""
        return array

    def refuse_remote(self, array: ObservedArray, key: Any, operation: str) -> bool:
        """Return True to skip an access to the memory of an ended block; the simulator raises an error otherwise."""
        return False

    # --- threads -----------------------------------------------------------------------------------------------------

    def block_begins(self, block: Any) -> None:
        """Take note of a block whose threads have not run yet."""

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Take note that all live threads of a block stand at a barrier and will go on."""

    def meeting(self, group: list[Any]) -> None:
        """Take note that a warp operation has all its lanes, before it is answered."""

    def team_meets(self, number: int, group: list[Any]) -> None:
        """Take note that all threads of a team stand at its barrier, of that number, and will go on."""

    def cluster_arrive(self, thread: Any) -> None:
        """Take note that a thread arrives at its cluster's barrier."""

    def cluster_meets(self, blocks: list[Any]) -> None:
        """Take note that all live threads of a cluster have arrived; `blocks`: those that have not ended."""

    def cluster_wait(self, thread: Any) -> None:
        """Take note that a thread goes on after its cluster's barrier."""

    def grid_sync(self, blocks: list[Any]) -> None:
        """Take note that all live threads of the grid stand at a grid sync and will go on."""

    def fence(self, thread: Any, scope: str) -> None:
        """Take note of a thread's memory fence, for its "block", the "device" or the "system"."""

    def returned(self, thread: Any) -> None:
        """Take note that a thread has come to its end."""

    def block_done(self, block: Any) -> None:
        """Take note that all threads of a block have returned."""

    def hangs(self, blocks: list[Any]) -> None:
        """Take note that the threads of `blocks` can never go on, before a DeadlockError says so."""

    def refuse_mask(self, thread: Any, operation: str, mask: int) -> bool:
        """Return True to let a lane go on that its own mask leaves out, as if the mask named it alone."""
        return False

    def refuse_shuffle(self, thread: Any, source: int, why: str) -> bool:
        """Return True to let a lane go on with its own value if its shuffle reads from a lane that gives none."""
        return False


def kernel_frame(frame: FrameType | None) -> FrameType:
    """Return the innermost frame, from `frame` outwards, that runs a kernel's or device function's source."""
    # An observer is called through the simulator's own frames; the kernel's is the first one outside of them.
    while frame is not None and KERNEL_MARK not in frame.f_globals:
        frame = frame.f_back
    assert frame is not None, "an access from outside of any kernel"
    return frame
