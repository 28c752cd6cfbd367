"""Calls that repeat: the first of its kind is recorded, the others are replayed.

Checking arguments, choosing a plan and packing parameters takes about 150 µs, a replay 8 (2.5 GHz; the driver's own
time comes on top). All that work depends on the signature alone: shapes, dtypes, devices, the addresses modulo 16
bytes, which tensors are given, and the options. So the first call of a signature writes down what it asked of its
backend: memory, and launches with whose address goes where. A replay allocates that memory, tells the launches the new
addresses, and queues them on torch's current stream. Memory that is not handed out is one piece in a replay. The steps
of the ladders know nothing of it. It covers contiguous torch tensors on a GPU; everything else goes the normal way.

Used by `normlab.host.norms`, `normlab.host.exact` and `normlab.nn`.
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

LIMIT = 4096  # recordings, of a few KB each: programs whose shapes never repeat must not fill the memory
APART = 256  # bytes: the parts of a replay's scratch begin at multiples, as what cudaMalloc gives
ALIGNMENT = 16  # bytes: the widest access that a plan may choose by an address

_recordings: dict[tuple, "Recording"] = {}
_lock = Lock()
_tensors: tuple[type, ...] = ()


class Made(NamedTuple):
    """How a tensor that a call makes lies in memory, and whether it begins as zeros."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any
    zero: bool


class Recording:
    """What a call does, for any tensors of its signature; called with their addresses, it returns the results.

    Attributes:
        checked: whether `normlab.nn`, too, has nothing to say against arguments of this signature.
    """

    def __init__(self, index: int, made: list[Made], launches: list, results: list[int | None]):
        """made: of the tensors that a call makes."""
        self._index = index
        self._device, empty = quick_memory()
        self._here = [_maker(one, empty) for one in made]
        self._anywhere = [_maker(one) for one in made]
        self._launches = launches
        self._results = _chooser(results)
        self._stream = stream_getter()
        self.checked = False

    def __call__(self, pointers: list[int]) -> tuple:
        """The results; `pointers` as `signature` returns them."""
        made = [make() for make in (self._here if self._device() == self._index else self._anywhere)]
        pointers += [tensor.data_ptr() for tensor in made]
        self._queue(pointers)
        made.append(None)  # for results that there are none of
        return self._results(made)

    def _queue(self, pointers: Sequence[int]) -> None:
        stream = self._stream(self._index)
        for launch in self._launches:
            launch(stream, pointers)


def signature(
    tensors: Sequence[Any], normalized_shape: Any, eps: Any, step: Any, *options: Any
) -> tuple[tuple | None, list[int]]:
    """What a call's work depends on, and the addresses of the tensors; None for a call that is not recorded.

    Args:
        tensors: what was given for the arrays, None among them.
        normalized_shape, eps, step: as given. Equal values of other types mean other things: 4 is right, 4.0 an error.
        options: other hashable things.
    """
    if type(normalized_shape) is not int:
        if not isinstance(normalized_shape, (tuple, list)):
            return None, []
        for size in normalized_shape:  # any() takes half a microsecond more
            if type(size) is not int:
                return None, []
        normalized_shape = tuple(normalized_shape)
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
    except RuntimeError:  # sparse or nested: the normal way says so
        return None, []
    return tuple(key), pointers


def _is_plain(tensor: Any) -> bool:
    """Is this a tensor of torch's own? Asked until one is: torch is not imported for it."""
    global _tensors
    torch = sys.modules.get("torch")
    if torch is not None:
        _tensors = torch.Tensor, torch.nn.Parameter
    return type(tensor) in _tensors


def find(key: tuple | None) -> Recording | None:
    """The recording of a signature; none of one that cannot be hashed, as with a list for a number."""
    try:
        return _recordings.get(key)  # type: ignore[arg-type]  # None is no key, and never found
    except TypeError:
        return None


def _put(key: tuple, value: Recording) -> None:
    with _lock:
        while len(_recordings) >= LIMIT:
            del _recordings[next(iter(_recordings))]  # the oldest
        _recordings[key] = value


def recorded(backend: Backend, key: tuple | None, pointers: list[int]) -> Backend:
    """The backend of a call, recording if it can be."""
    return Recorder(backend, key, pointers) if key is not None and isinstance(backend, TorchBackend) else backend


def keep(backend: Backend) -> None:
    """Keep what a backend has recorded; to be called when all results are given back."""
    if isinstance(backend, Recorder) and backend.complete:
        _put(backend.key, backend.recording())


class Recorder:
    """A backend that writes down what it is asked for, and otherwise is the TorchBackend that it is made of.

    Tensors are known by the order in which `operand` is asked for them, for two of them may be the same one.
    """

    def __init__(self, backend: TorchBackend, key: tuple, pointers: list[int]):
        self.backend = backend
        self.key = key
        self.complete = True
        self._pointers = pointers
        self._given: list[engine.DeviceArray] = []
        self._made: list[engine.DeviceArray] = []
        self._tensors: list[tuple[Any, bool]] = []  # those made: as they are given back, and whether of zeros
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
        return self._record(self.backend.empty(shape, dtype), zero=False)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:  # noqa: D102
        return self._record(self.backend.zeros(shape, dtype), zero=True)

    def _record(self, operand: engine.DeviceArray, zero: bool) -> engine.DeviceArray:
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
        self.complete = False  # what comes may depend on them
        return self.backend.numbers(operand)

    def _patch(self, slot: int, array: engine.DeviceArray) -> tuple[int, int, int] | None:
        """Where an argument's address comes from: a tensor, or memory made here, and how far into it."""
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

    def recording(self) -> Recording:
        """What was written down. What is neither given back nor of zeros has its place in one tensor of bytes."""
        made: list[Made] = []
        scratch: dict[int, int] = {}  # source of an address -> how far into that tensor
        sources: dict[int, int] = {}  # as the recorder counted them -> as a replay does
        size, given = 0, len(self._pointers)
        for position, (tensor, zero) in enumerate(self._tensors):
            if zero or position in self._results:
                sources[given + position] = given + len(made)
                made.append(Made(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, zero))
            else:
                scratch[given + position] = size
                size += -(-tensor.nbytes // APART) * APART
        if scratch:
            sources.update(dict.fromkeys(scratch, given + len(made)))
            one = self.backend.empty((1,), np.dtype(np.uint8)).owner  # tells dtype and device; scratch may be gigabytes
            made.append(Made((size,), (1,), one.dtype, one.device, zero=False))
        for launch in self._launches:
            launch.patches = tuple(
                (slot, sources.get(source, source), offset + scratch.get(source, 0))
                for slot, source, offset in launch.patches
            )
        results = [None if position is None else sources[given + position] - given for position in self._results]
        return Recording(self.backend.index, made, self._launches, results)


def _chooser(positions: list[int | None]) -> Callable[[list], tuple]:
    """What makes a tuple of some elements of a list; of the last one for None."""
    chosen = [-1 if position is None else position for position in positions]
    if len(chosen) > 1:
        return itemgetter(*chosen)
    return lambda made: tuple([made[position] for position in chosen])


def _maker(like: Made, empty: Any = None) -> Callable[[], Any]:
    """Return what allocates such a tensor, by `quick_memory`'s `empty` if that is given.

    Otherwise by `empty_strided`, which takes half of the time of `empty`.
    """
    torch = sys.modules["torch"]
    shape, strides, dtype, device, zero = like
    if zero:
        return partial(torch.zeros, shape, dtype=dtype, device=device)
    if empty is not None:
        return partial(empty, shape, strides, dtype)
    return partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
