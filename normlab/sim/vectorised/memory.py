"""Hold the memory of a chunk of blocks: global arrays in place, shared arrays side by side, local arrays by lane.

A `Store` is one piece of memory as a flat array. What a kernel calls an array is an `Array`: a store, a shape and
strides, counted in elements. The element that a lane means lies at its own offset:

- in a global array, all lanes count from the same beginning;
- the shared arrays of one call stand one after another, block by block, so that a lane adds its block's number times
  the array's size;
- a local array has the elements of all lanes side by side, so that element 3 of every lane is one stretch of memory.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from normlab.sim.language.integers import WITH_LOADS_OF_THEIR_OWN
from normlab.sim.machine.memory import fresh
from normlab.sim.vectorised.refusal import NotVectorisedError, RestartError
from normlab.sim.vectorised.values import HOLDERS, Vector

MOST_BYTES = 1 << 30  # of shared or local memory of a chunk


def has_kind(dtype: np.dtype) -> bool:
    """Return whether a load gives a scalar type that this engine knows."""
    return WITH_LOADS_OF_THEIR_OWN.get(dtype, dtype.type) in HOLDERS


def kind_of_elements(dtype: np.dtype) -> type:
    """Return the scalar type that a load gives; raises NotVectorisedError where there is none."""
    if not has_kind(dtype):
        raise NotVectorisedError(f"of an array of {dtype}")
    return WITH_LOADS_OF_THEIR_OWN.get(dtype, dtype.type)


class Store:
    """One piece of memory. `original`: the host's array, of which `data` is a view, or a copy until the launch ends."""

    __slots__ = ("accesses", "backup", "data", "key", "original", "records", "space", "was_read", "whole", "written")

    def __init__(self, data: np.ndarray, space: str, original: np.ndarray | None = None, key: Any = None):
        """Hold the flat array `data`, of "global", "shared" or "local" memory."""
        self.data, self.space, self.original, self.key = data, space, original, key
        self.backup: np.ndarray | None = None  # a copy of `original`, made before the first store
        # Who has read and written what since threads met last (races.py); None while loads are not recorded.
        self.accesses: Any = None
        self.was_read = False  # whether a load of this chunk has not been recorded
        # Which elements have been written, `whole` for each that has; None without a proof (proof.py).
        self.written: np.ndarray | None = None
        self.whole: Any = 1
        self.records: Any = None  # of a field of a host's records: the memory that it shares with other fields

    def before_store(self, machine: Any) -> None:
        """Prepare for a store by the kernel; raises RestartError if loads should have been recorded."""
        # At the launch's first store into this memory. Shared and local memory is the chunk's own, and never restored.
        if self.space == "global" and self.backup is None:
            assert self.original is not None
            if not self.original.flags.writeable:
                raise NotVectorisedError("a store into an array that cannot be written")
            # Each store has a log of its own. No log sees both accesses of a race between two names of one element.
            if machine.launch.overlapping(self):
                raise NotVectorisedError("the kernel writes to an array that shares memory with another argument")
            if self.accesses is None:
                machine.launch.recorded.add(self.key)  # from the next chunk, or attempt, on
                if self.was_read or machine.launch.proof is not None:  # an earlier chunk may have read it
                    raise RestartError
                machine.record(self)
            self.backup = self.original.copy()

    def note_writes(self, written: np.ndarray | None = None) -> None:
        """Begin to note which elements are written. `written`: a byte for each byte of memory that others see, too."""
        if written is None:
            self.written = np.zeros(len(self.data), np.uint8)
            return
        # Seen in elements of this dtype, so that one comparison tells whether all bytes of an element have been
        # written. NumPy has no integers of 16 bytes: a complex number stands for these.
        self.written = written.view(f"{'u' if self.data.itemsize <= 8 else 'c'}{self.data.itemsize}")
        self.whole = np.full(self.data.itemsize, 1, np.uint8).view(self.written.dtype)[0]

    def restore(self) -> None:
        """Undo all stores."""
        if self.backup is not None and self.original is not None:
            self.original[...] = self.backup
            self.backup = None

    def finish(self) -> None:
        """Let the host see what has been stored into a copy of its array."""
        if self.backup is not None and self.original is not None and not np.may_share_memory(self.original, self.data):
            self.original[...] = self.data.reshape(self.original.shape)


class Array:
    """An array as a kernel has it. `base`: "block" or "lane" if every block or lane has its own, else None.

    `offset`: of the first element, an int, or an array with one for each lane of the frame for a view that varies.
    """

    __slots__ = ("alignment", "base", "dtype", "frozen", "kind", "offset", "seen", "shape", "store", "strides")

    def __init__(self, store: Store, dtype: np.dtype, shape: tuple, strides: tuple, offset: Any, base: Any = None):
        """Describe elements of `store`; strides and offset count elements."""
        self.store, self.dtype, self.base = store, dtype, base
        self.shape, self.strides, self.offset = shape, strides, offset
        self.kind = kind_of_elements(dtype)
        self.alignment: int | None = None  # of shared memory: the bytes of which its address is a multiple
        self.frozen = False  # whether a store must fail, as into constant memory
        self.seen: Any = None  # what the observer keeps with the array; None if accesses are not told

    def taken(self, places: np.ndarray) -> "Array":
        """Return the array as the lanes at `places` see it."""
        if not isinstance(self.offset, np.ndarray):
            return self
        offset: Any = self.offset[places]
        # A frame of one lane has scalars only.
        if len(places) == 1:
            offset = int(offset[0])
        return self.viewed(self.shape, self.strides, offset)

    def spread(self, places: np.ndarray, width: int) -> "Array":
        """Return the array for `width` lanes, of which those at `places` see it as before: the reverse of `taken`."""
        offset = np.zeros(width, np.int64)
        offset[places] = self.offset
        return self.viewed(self.shape, self.strides, offset)

    def viewed(self, shape: tuple, strides: tuple, offset: Any) -> "Array":
        """Return a view of the same memory."""
        view = Array(self.store, self.dtype, shape, strides, offset, self.base)
        view.kind, view.alignment, view.frozen, view.seen = self.kind, self.alignment, self.frozen, self.seen
        return view

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether the elements of one lane's array follow each other in C order."""
        steps = contiguous_strides(self.shape, self.lane_stride)
        layout = zip(self.shape, self.strides, steps, strict=True)
        # The stride of an axis with one element is never taken.
        return all(extent == 1 or stride == step for extent, stride, step in layout)

    @property
    def lane_stride(self) -> int:
        """The distance of two neighbouring elements in a store of this layout."""
        return self.base[1] if type(self.base) is tuple and self.base[0] == "lane" else 1


class Records(NamedTuple):
    """An array of records as a kernel has it: an array for each field that a kernel may access here, by its name."""

    fields: dict[str, Array]
    shape: tuple[int, ...]
    dtype: np.dtype

    def field(self, name: Any) -> Array:
        """Return the array of a field; raises NotVectorisedError for one that this engine does not access."""
        if name not in self.fields:
            raise NotVectorisedError(f"of the field {name!r} of a record")
        return self.fields[name]

    @property
    def arrays(self) -> list[Array]:
        """The arrays of all fields; raises NotVectorisedError if one of them is missing."""
        if len(self.fields) < len(self.dtype.names or ()):
            raise NotVectorisedError(f"of records of {self.dtype}")
        return list(self.fields.values())


class Record(NamedTuple):
    """One record for each lane: that at `index`."""

    records: Records
    index: Any


class Walk(NamedTuple):
    """What a loop walks through by `zip` or `enumerate`: several sequences at once."""

    parts: tuple


def length_of(value: Any) -> int:
    """Return what `len` gives of an array, a range or a tuple, or how many turns a walk through it has."""
    if type(value) is Walk:
        return min(map(length_of, value.parts))  # zip ends with the shortest
    if not isinstance(value, Array | Records | range | tuple) or getattr(value, "shape", None) == ():
        raise NotVectorisedError(f"of the length of a {type(value).__name__}")
    return value.shape[0] if isinstance(value, Array | Records) else len(value)


def contiguous_strides(shape: tuple[int, ...], step: int = 1) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array whose neighbours are `step` apart."""
    return tuple(step * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def global_array(array: np.ndarray, key: Any) -> Array:
    """Return a host's array, as the kernel sees it after `adopt`, without a copy."""
    plain = np.asarray(array)
    if plain.dtype.names or (plain.dtype.kind not in "biufc" and plain.dtype != ml_dtypes.bfloat16):
        raise NotVectorisedError(f"of an array of {plain.dtype}")
    # Nearly every array: a view, so stores are in the host's memory at once.
    if plain.flags.c_contiguous:
        return Array(
            Store(plain.reshape(-1), "global", plain, key), plain.dtype, plain.shape, contiguous_strides(plain.shape), 0
        )
    if any(stride % plain.itemsize for stride in plain.strides):  # as in records without padding
        # A place counts whole elements, so such an array has none: the kernel works on a copy until `Store.finish`.
        copy = global_array(plain.copy(), key)
        copy.store.original, copy.alignment = plain, 1  # no vector access: its address is another
        return copy
    if not plain.size:  # there is no lowest element to begin at
        raise NotVectorisedError("of an array without elements")
    strides = tuple(stride // plain.itemsize for stride in plain.strides)
    spans = [stride * (extent - 1) for stride, extent in zip(strides, plain.shape, strict=True)]
    # The flat array runs from the lowest to the highest element, whatever the signs of the strides.
    lowest = plain[tuple(slice(-1, None) if span < 0 else slice(0, 1) for span in spans)]
    length = sum(map(abs, spans)) + 1
    flat = np.lib.stride_tricks.as_strided(lowest, (length,), (plain.itemsize,), writeable=plain.flags.writeable)
    return Array(Store(flat, "global", plain, key), plain.dtype, plain.shape, strides, -sum(min(0, s) for s in spans))


def parts_of(array: Array | Records) -> list[Array]:
    """Return the arrays of which an array consists: itself, or those of its records' fields."""
    return [array] if isinstance(array, Array) else list(array.fields.values())


def _records(shape: tuple[int, ...], dtype: np.dtype, made: Callable[[tuple, np.ndarray], Array]) -> Records:
    """Return new records: an array for each field, `made` of its shape and of the number that fills it."""
    # One record as the scheduler makes it, cut into fields: each begins with the bits that it has there.
    record = np.asarray(fresh((1,), dtype))
    fields = {}
    for name in dtype.names or ():
        filling = record[name].reshape(-1)[:1]
        if has_kind(filling.dtype):
            fields[name] = made((*shape, *record[name].shape[1:]), filling)
    return Records(fields, shape, dtype)


def shared_array(blocks: int, alignment: int, shape: tuple[int, ...], filling: np.ndarray) -> Array:
    """Return a shared array of every block of a chunk, filled with a number."""
    size = prod(shape)
    store = Store(_filled(blocks * size, filling), "shared")
    # `accesses.place_of` asks the lanes for this base, and gets `size` times the number of each lane's block.
    array = Array(store, filling.dtype, shape, contiguous_strides(shape), 0, ("block", size))
    array.alignment = alignment
    return array


def seen_as(memory: np.ndarray, dtype: np.dtype, size: int, blocks: int) -> Array:
    """Return the dynamic shared memory of every block, `size` bytes each, as arrays of a dtype."""
    shape = (size // dtype.itemsize,)
    # Blocks begin `room` elements apart. The array of each ends before, where its `size` has been rounded up.
    room = len(memory) // blocks // dtype.itemsize
    array = Array(Store(memory.view(dtype), "shared"), dtype, shape, (1,), 0, ("block", room))
    array.alignment = 16  # as the scheduler's memory has, which NumPy allocates
    return array


def local_array(lanes: int, shape: tuple[int, ...], filling: np.ndarray) -> Array:
    """Return a local array of every lane of a chunk, filled with a number."""
    store = Store(_filled(lanes * prod(shape), filling), "local")
    # A lane's neighbours are `lanes` apart: most accesses ask for one element in every lane, and these lie together.
    return Array(store, filling.dtype, shape, contiguous_strides(shape, lanes), 0, ("lane", lanes))


def _filled(size: int, filling: np.ndarray) -> np.ndarray:
    if size * filling.nbytes > MOST_BYTES:
        raise NotVectorisedError(f"the arrays of many blocks at once would take {size * filling.nbytes} bytes")
    return np.tile(filling, size)


def new_memory(shape: tuple[int, ...], dtype: np.dtype, maker: Callable[[tuple, np.ndarray], Array]) -> Array | Records:
    """Return new memory, filled as the scheduler fills it, of a `shared_array` or a `local_array`."""
    return _records(shape, dtype, maker) if dtype.names else maker(shape, np.asarray(fresh((1,), dtype)))


def loaded(array: Array, data: np.ndarray) -> Vector:
    """Return elements of an array as a value."""
    holder = HOLDERS[array.kind]
    return Vector(array.kind, data if data.dtype == holder else data.astype(holder))
