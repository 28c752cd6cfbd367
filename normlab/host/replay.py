"""Calls that repeat: the first call of its kind is cached with its launches, later ones replay them.

Checking arguments, choosing a plan and packing parameters takes about 150 µs. A replay takes 8 µs (2.5 GHz; without the
driver's own time). All of that work depends on the call's signature alone: shapes, dtypes, devices, the addresses
modulo 16 bytes, which tensors are given, and the options. So the first call of a signature notes what it asks of its
array backend: which memory it allocates, and which launch takes whose address. A replay allocates the same memory,
writes the new addresses into the packed arguments, and queues the launches on torch's current stream. All scratch that
need not begin as zeros is one piece of memory in a replay.

Only calls with contiguous torch tensors on a GPU are cached. The steps of the ladders know nothing of the cache.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from normlab import engine
from normlab.host.arrays import Backend, TorchBackend, quick_memory, stream_getter

LIMIT = 4096  # cached launches, of a few KB each: programs whose shapes never repeat must not fill the memory
SCRATCH_ALIGNMENT = 256  # bytes: each scratch array of a replay begins at a multiple, as cudaMalloc's allocations do
ALIGNMENT = 16  # bytes: the widest access that a plan may choose by an address

_cached: dict[tuple, "CachedLaunch"] = {}
_lock = Lock()
_tensors: tuple[type, ...] = ()


class TensorLayout(NamedTuple):
    """What a replay needs to allocate one of a call's tensors. zero: it is filled with zeros."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any
    zero: bool


class CachedLaunch:
    """The launches of a call, for any tensors of its signature: call it with their addresses to get the results.

    Attributes:
        checked: True once `normlab.nn` has checked arguments of this signature, too.
    """

    def __init__(self, index: int, layouts: list[TensorLayout], launches: list, results: list[int | None]):
        """Prepare. index: the GPU's number. layouts: of the tensors to allocate; results: which of them it returns."""
        self._index = index
        self._device, empty = quick_memory()
        self._here = [_maker(layout, empty) for layout in layouts]
        self._anywhere = [_maker(layout) for layout in layouts]
        self._launches = launches
        self._results = _chooser(results)
        self._stream = stream_getter()
        self.checked = False

    def __call__(self, pointers: list[int]) -> tuple:
        """Allocate, queue the launches, and return the results. pointers: as `signature` returns them."""
        made = [make() for make in (self._here if self._device() == self._index else self._anywhere)]
        pointers += [tensor.data_ptr() for tensor in made]
        stream = self._stream(self._index)
        for launch in self._launches:
            launch(stream, pointers)
        made.append(None)  # the result in place of an absent parameter's gradient
        return self._results(made)


def signature(
    tensors: Sequence[Any], normalized_shape: Any, eps: Any, step: Any, *options: Any
) -> tuple[tuple | None, list[int]]:
    """Return the key that a call is cached under, and its tensors' addresses. The key is None for calls not cached.

    Args:
        tensors: the arguments that may be arrays; absent ones are None.
        normalized_shape, eps, step: as given; 4 and (4,) mean the same. Equal values of other types mean other things:
            4 is right, 4.0 an error.
        options: other hashable values.
    """
    if type(normalized_shape) is not int:
        if not isinstance(normalized_shape, (tuple, list)):
            return None, []
        for size in normalized_shape:  # any() takes half a microsecond more
            if type(size) is not int:
                return None, []
        normalized_shape = tuple(normalized_shape)
    else:
        normalized_shape = (normalized_shape,)
    if type(eps) is not float or type(step) is not str:
        return None, []
    key = [normalized_shape, eps, step, options]
    pointers = []
    try:
        for tensor in tensors:
            if tensor is None:
                key.append(None)
            elif (type(tensor) in _tensors or _is_plain(tensor)) and tensor.is_contiguous():
                pointer = tensor.data_ptr()
                pointers.append(pointer)
                key += tensor.shape, tensor.dtype, tensor.device, pointer % ALIGNMENT
            else:
                return None, []
    except RuntimeError:  # a sparse or nested tensor: the call without the cache raises an error that says so
        return None, []
    return tuple(key), pointers


def _is_plain(tensor: Any) -> bool:
    """Return True for a tensor of torch's own class. Does not import torch."""
    global _tensors
    torch = sys.modules.get("torch")
    if torch is not None:
        _tensors = torch.Tensor, torch.nn.Parameter
    return type(tensor) in _tensors


def find(key: tuple | None) -> CachedLaunch | None:
    """Return the cached launch of a key, or None, also if the key cannot be hashed (a list as an option)."""
    try:
        return _cached.get(key)  # type: ignore[arg-type]  # None is no key, and never found
    except TypeError:
        return None


def _put(key: tuple, value: CachedLaunch) -> None:
    with _lock:
        while len(_cached) >= LIMIT:
            del _cached[next(iter(_cached))]  # the oldest
        _cached[key] = value


def caching(backend: Backend, key: tuple | None, pointers: list[int]) -> Backend:
    """Return a `CachingBackend` around the backend if the call can be cached, else the backend itself."""
    if key is not None and isinstance(backend, TorchBackend):
        return CachingBackend(backend, key, pointers)
    return backend


def keep(backend: Backend, *results: tuple[Any, tuple[int, ...]]) -> tuple:
    """Return a call's results as the caller's arrays, and cache the call. results: operands, each with its shape."""
    given = tuple(backend.give_back(operand, shape) for operand, shape in results)
    if isinstance(backend, CachingBackend) and backend.complete:
        _put(backend.key, backend.cached_launch())
    return given


class CachingBackend:
    """An array backend that passes each call on to a TorchBackend, and notes it for a replay.

    The order of the calls of `operand` tells operands apart, because two of them may be the same tensor.
    """

    def __init__(self, backend: TorchBackend, key: tuple, pointers: list[int]):
        self.backend = backend
        self.key = key
        self.complete = True  # False once something was asked for that a replay could not repeat
        self._pointers = pointers
        self._given: list[engine.DeviceArray] = []
        self._made: list[engine.DeviceArray] = []
        self._tensors: list[tuple[Any, bool]] = []  # of `_made`, reshaped if given back; True: filled with zeros
        self._launches: list[engine.Launch] = []
        self._results: list[int | None] = []

    def operand(self, array: Any, shape: tuple[int, ...]) -> Any:  # noqa: D102
        operand = self.backend.operand(array, shape)
        if operand is not None:
            position = len(self._given)
            self.complete &= position < len(self._pointers) and operand.pointer == self._pointers[position]
            self._given.append(operand)
        return operand

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:  # noqa: D102
        return self._note(self.backend.empty(shape, dtype), zero=False)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:  # noqa: D102
        return self._note(self.backend.zeros(shape, dtype), zero=True)

    def _note(self, operand: engine.DeviceArray, zero: bool) -> engine.DeviceArray:
        self._made.append(operand)
        self._tensors.append((operand.owner, zero))
        return operand

    def launch(self, *args: Any, **options: Any) -> None:  # noqa: D102
        launch = engine.prepare(*args, **options)
        launch(self.backend.stream)
        arrays = [arg for arg in args if isinstance(arg, engine.DeviceArray)]
        patches = [self._patch(slot, array) for slot, array in zip(launch.slots, arrays, strict=True)]
        launch.patches = tuple(patch for patch in patches if patch is not None)
        self.complete &= len(launch.patches) == len(arrays)
        self._launches.append(launch)

    def numbers(self, operand: engine.DeviceArray) -> list:  # noqa: D102
        self.complete = False  # later launches may depend on these numbers
        return self.backend.numbers(operand)

    def _patch(self, slot: int, array: engine.DeviceArray) -> tuple[int, int, int] | None:
        """Return (slot, source, offset) for `Launch.patches`: the argument or allocation that an array lies in."""
        for first, known in ((0, self._given), (len(self._pointers), self._made)):
            for position, operand in enumerate(known):
                if operand.owner is array.owner:
                    return slot, first + position, array.pointer - operand.pointer
        return None

    def give_back(self, operand: Any, shape: tuple[int, ...]) -> Any:  # noqa: D102
        result = self.backend.give_back(operand, shape)
        if operand is None:
            self._results.append(None)
            return None
        position = next(position for position, made in enumerate(self._made) if made is operand)
        self._tensors[position] = result, self._tensors[position][1]
        self._results.append(position)
        return result

    def cached_launch(self) -> CachedLaunch:
        """Return the call's launches. Scratch that need not be zero becomes parts of one tensor of bytes."""
        layouts: list[TensorLayout] = []
        scratch: dict[int, int] = {}  # source in the first call -> its offset in the tensor of bytes
        sources: dict[int, int] = {}  # source in the first call -> source in a replay
        size, given = 0, len(self._pointers)
        for position, (tensor, zero) in enumerate(self._tensors):
            if zero or position in self._results:
                sources[given + position] = given + len(layouts)
                layouts.append(TensorLayout(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, zero))
            else:
                scratch[given + position] = size
                size += -(-tensor.nbytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        if scratch:
            sources.update(dict.fromkeys(scratch, given + len(layouts)))
            # Allocate one element to learn dtype and device: all of the scratch may be gigabytes, and the first call
            # still holds its own.
            one = self.backend.empty((1,), np.dtype(np.uint8)).owner
            layouts.append(TensorLayout((size,), (1,), one.dtype, one.device, zero=False))
        for launch in self._launches:
            launch.patches = tuple(
                (slot, sources.get(source, source), offset + scratch.get(source, 0))
                for slot, source, offset in launch.patches
            )
        results = [None if position is None else sources[given + position] - given for position in self._results]
        return CachedLaunch(self.backend.index, layouts, self._launches, results)


def _chooser(positions: list[int | None]) -> Callable[[list], tuple]:
    """Return a function that returns the elements of a list at these positions; the last element for a None."""
    chosen = [-1 if position is None else position for position in positions]
    if len(chosen) > 1:
        return itemgetter(*chosen)
    return lambda made: tuple([made[position] for position in chosen])


def _maker(layout: TensorLayout, empty: Any = None) -> Callable[[], Any]:
    """Return a function that allocates a tensor of this layout: by `quick_memory`'s `empty`, or by `empty_strided`.

    `empty_strided` takes half of the time of `empty`.
    """
    torch = sys.modules["torch"]
    shape, strides, dtype, device, zero = layout
    if zero:
        return partial(torch.zeros, shape, dtype=dtype, device=device)
    if empty is not None:
        return partial(empty, shape, strides, dtype)
    return partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
