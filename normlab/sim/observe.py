"""Watching a launch: arrays that report every access, and the observer that hears of it.

A launch without an observer runs on plain NumPy arrays. With one, every array that a kernel sees is an
`ObservedArray`, which asks the observer for each element, and scheduler, atomics and fences tell it where threads
meet. `trace` and `sanitize` are observers.
"""

import sys
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from normlab.sim.paths import KERNEL_MARK

ALIGNMENT = 512  # bytes to which a GPU's allocator aligns


class Buffer:
    """Memory under one name: an argument, or a shared, local or constant array.

    `address` is where it begins on the device that we imagine: allocations begin at multiples of 512 bytes, two
    views of one allocation lie as far apart as on the host, and every shared array begins at bank 0. `state` belongs
    to the observer.
    """

    __slots__ = ("address", "allocation", "array", "name", "space", "state")

    def __init__(self, name: str, space: str, array: np.ndarray, address: int, allocation: range = range(0)):
        """Name `array`: in "global", "shared", "local" or "constant" memory, at `address` of `allocation`."""
        self.name, self.space, self.array, self.address, self.allocation = name, space, array, address, allocation
        self.state: Any = None


class ObservedArray:
    """An array in a kernel under observation: it has an array's attributes, and asks `observer` for every element."""

    __slots__ = ("address", "buffer", "fields", "itemsize", "observer", "raw", "shape", "strides")

    def __init__(self, raw: np.ndarray, buffer: Buffer, observer: "Observer", address: int):
        """Stand for `raw`, all or a view of `buffer`, beginning at `address` of the imagined device."""
        self.raw, self.buffer, self.observer, self.address = raw, buffer, observer, address
        self.shape, self.strides, self.itemsize = raw.shape, raw.strides, raw.itemsize
        self.fields: dict[str, ObservedArray] = {}

    def __getitem__(self, key: Any) -> Any:
        """Return an element, or a view."""
        return self.observer.read(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store an element, or many by a slice."""
        self.observer.write(self, key, value)

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self.raw)

    def __iter__(self) -> Any:
        """Walk through the first axis."""
        return (self[index] for index in range(len(self.raw)))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the array behind; a method that gives a view (reshape, T, view) gives one observed."""
        value = getattr(self.raw, name)
        if isinstance(value, np.ndarray):
            return self.viewed(value)
        if callable(value):
            return lambda *arguments, **keywords: self._result(value(*arguments, **keywords))
        return value

    def _result(self, value: Any) -> Any:
        return self.viewed(value) if isinstance(value, np.ndarray) and np.may_share_memory(value, self.raw) else value

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, out: tuple = (), **keywords: Any) -> Any:
        """Do what NumPy's function does, element by element: `np.sin(x, out)` in a kernel is a loop."""
        plain = [elements(part) if isinstance(part, ObservedArray) else part for part in inputs]
        result = getattr(function, method)(*plain, **keywords)
        for target, values in zip(out, result if isinstance(result, tuple) else (result,), strict=False):
            for index in np.ndindex(target.shape):
                target[index] = np.broadcast_to(values, target.shape)[index]
        return out[0] if len(out) == 1 else out or result

    def viewed(self, view: np.ndarray) -> "ObservedArray":
        """Return a view of `raw` as an observed array of the same buffer."""
        return type(self)(view, self.buffer, self.observer, self.address + pointer(view) - pointer(self.raw))

    def field(self, name: str) -> "ObservedArray":
        """Return the field `name` of an array of records."""
        if name not in self.fields:
            self.fields[name] = self.viewed(np.asarray(self.raw)[name])
        return self.fields[name]


def elements(array: ObservedArray) -> np.ndarray:
    """Return a copy of an array's elements, each of them read."""
    copy = np.array(array.raw)
    for index in np.ndindex(array.shape):
        copy[index] = array[index]
    return copy


class ObservedRecord:
    """One element of an array of records: `states[i].s0`, `states[i]["s0"]`."""

    __slots__ = ("_array", "_key")

    def __init__(self, array: ObservedArray, key: Any):
        """Stand for `array[key]`."""
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_key", key)

    def __getattr__(self, name: str) -> Any:
        """Return a field's value."""
        return self._array.field(name)[self._key]

    def __setattr__(self, name: str, value: Any) -> None:
        """Store a field's value."""
        self._array.field(name)[self._key] = value

    __getitem__, __setitem__ = __getattr__, __setattr__


def pointer(array: np.ndarray) -> int:
    """Return the host address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def allocation_of(array: np.ndarray) -> tuple[int, int, Any]:
    """Return the host address and the bytes of the memory that `array` is all or a view of, and whose it is.

    NumPy knows the array that a view is made of, a torch tensor its storage, anything else its buffer.
    """
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    base: Any = owner.base
    if hasattr(base, "untyped_storage"):
        storage = base.untyped_storage()
        return storage.data_ptr(), storage.nbytes(), owner
    with suppress(TypeError, ValueError, BufferError):
        memory: Any = base.obj if isinstance(base, memoryview) else base
        whole = np.frombuffer(memory, np.uint8)
        return pointer(whole), whole.nbytes, owner
    low, high = byte_bounds(owner)
    return low, high - low, owner


class Observer:
    """Hears of everything that a launch does. The methods here do what the kernel asks, and note nothing."""

    array_class: type[ObservedArray] = ObservedArray
    cuda: Any  # of the launch
    kernel_code: CodeType  # as it runs
    wants_marks = False  # whether functions report their turns and accesses (paths.py, marks.py)

    def __init__(self) -> None:
        """Know of no memory yet."""
        self._owners: dict[int, tuple[range, Any]] = {}  # an allocation's host address → its addresses on the device
        self._end = ALIGNMENT  # of the imagined device's memory in use

    def attach(self, cuda: Any) -> None:
        """Watch the launch of `cuda`, which is about to begin."""
        self.cuda = cuda

    def marks(self, in_kernel: bool) -> dict[str, Any]:
        """Return the globals that marked functions call: the kernel, or (not `in_kernel`) functions that it calls."""
        return {}

    # --- memory ------------------------------------------------------------------------------------------------------

    def adopt(self, value: Any, name: str, space: str = "global") -> Any:
        """Return what a kernel sees of an argument that it calls `name`."""
        if isinstance(value, tuple):
            parts = [self.adopt(part, f"{name}[{position}]", space) for position, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if not isinstance(value, np.ndarray):
            return value
        address, allocation = self._device_address(value)
        buffer = Buffer(name, space, value, address, allocation)
        self.add(buffer)
        return self.array_class(value, buffer, self, buffer.address)

    def _device_address(self, array: np.ndarray) -> tuple[int, range]:
        """Return where `array` begins on the imagined device, and the addresses of the allocation that it lies in."""
        start, size, owner = allocation_of(array)
        if start not in self._owners:
            self._owners[start] = range(self._end, self._end + size), owner  # kept: no other array takes its place
            self._end += -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        allocation = self._owners[start][0]
        return allocation.start + pointer(array) - start, allocation

    def made(self, array: np.ndarray, name: str, space: str, address: int) -> ObservedArray:
        """Return a new shared or local array as the kernel sees it."""
        buffer = Buffer(name, space, array, address)
        self.add(buffer)
        return self.array_class(array, buffer, self, address)

    def add(self, buffer: Buffer) -> None:
        """Hear of memory that the kernel has from now on."""

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Return `array[key]`."""
        return self.value_of(array, key, array.raw[key])

    def value_of(self, array: ObservedArray, key: Any, value: Any) -> Any:
        """Return what indexing gave as the kernel sees it: a view and a record stay observed."""
        if isinstance(value, np.ndarray):
            return array.viewed(value)
        return ObservedRecord(array, key) if isinstance(value, np.void) else value

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Do `array[key] = value`."""
        array.raw[key] = value.raw if isinstance(value, ObservedArray) else value

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Return the plain array and the index on which the running thread is to do its atomic operation."""
        return array.raw, key

    def exchange(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Do as `atomic`, for an operation whose new value does not depend on the old one."""
        return self.atomic(array, key)

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Return `width` neighbouring elements, loaded by one instruction."""
        return array.raw[(*key[:-1], slice(key[-1], key[-1] + width))]

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store neighbouring elements by one instruction."""
        array.raw[(*key[:-1], slice(key[-1], key[-1] + len(values)))] = values

    # --- threads -----------------------------------------------------------------------------------------------------

    def block_begins(self, block: Any) -> None:
        """Hear of a block whose threads have not run yet."""

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Hear that all live threads of a block stand at a barrier and will go on."""

    def meeting(self, group: list[Any]) -> None:
        """Hear that a warp operation has all its lanes, before it is answered."""

    def grid_sync(self, blocks: list[Any]) -> None:
        """Hear that all live threads of the grid stand at a grid sync and will go on."""

    def fence(self, thread: Any, scope: str) -> None:
        """Hear of a thread's memory fence, for its "block", the "device" or the "system"."""

    def returned(self, thread: Any) -> None:
        """Hear that a thread has come to its end."""

    def block_done(self, block: Any) -> None:
        """Hear that all threads of a block have returned."""

    def hangs(self, blocks: list[Any]) -> None:
        """Hear that the threads of `blocks` wait for each other or for nobody, before a DeadlockError says so."""

    def refuse_mask(self, thread: Any, operation: str, mask: int) -> bool:
        """Hear of a lane that its own mask leaves out; True: let it go on as if the mask named it alone."""
        return False

    def refuse_shuffle(self, thread: Any, source: int, why: str) -> bool:
        """Hear of a shuffle from a lane that gives nothing; True: let it go on with its own value."""
        return False


def kernel_frame(frame: FrameType | None) -> FrameType:
    """Return the innermost frame, from `frame` outwards, that runs a kernel's or device function's source."""
    while frame is not None and KERNEL_MARK not in frame.f_globals:
        frame = frame.f_back
    assert frame is not None, "an access from outside of any kernel"
    return frame


def caller(depth: int = 1) -> FrameType:
    """Return the kernel's frame that called, however indirectly, the function `depth` frames up."""
    return kernel_frame(sys._getframe(depth + 1))


def offset_of(array: ObservedArray, key: Any) -> int | None:
    """Return how far, in bytes, one element lies from the array's beginning; None if `key` means a view of many.

    Negative indices count from the end, as NumPy's and Numba's do. `key` is known to be inside.
    """
    if type(key) is not tuple:
        key = (key,)
    if len(key) != len(array.shape):
        return None
    offset = 0
    for index, extent, stride in zip(key, array.shape, array.strides, strict=True):
        if isinstance(index, slice) or index is Ellipsis:
            return None
        offset += int(index + extent if index < 0 else index) * stride
    return offset
