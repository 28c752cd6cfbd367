"""Define arrays that report every access to an observer (observe.py), and their addresses on an imagined device."""

from contextlib import suppress
from typing import Any
from weakref import ref

import numpy as np
from numpy.lib.array_utils import byte_bounds

from normlab.sim.language.arrays import as_kernel_array
from normlab.sim.protocols import Observer


class Buffer:
    """Memory under one name: an argument, or a shared or local array.

    `address` is where it begins on an imagined device: allocations begin at multiples of 512 bytes, two views of one
    allocation lie as far apart as on the host, and every shared array begins at bank 0. `block`: the block that owns
    shared or local memory. `state` belongs to the observer.
    """

    __slots__ = ("address", "allocation", "array", "block", "name", "space", "state")

    def __init__(
        self, name: str, space: str, array: np.ndarray, address: int, allocation: range = range(0), block: Any = None
    ):
        """Name `array`: in "global", "shared" or "local" memory, at `address` of `allocation`."""
        self.name, self.space, self.array, self.address, self.allocation = name, space, array, address, allocation
        self.block = block
        self.state: Any = None


class ObservedArray:
    """An array in a kernel under observation: it has an array's attributes, and asks `observer` for every element."""

    __slots__ = ("address", "buffer", "dtype", "fields", "itemsize", "observer", "raw", "shape", "strides")

    def __init__(self, raw: np.ndarray, buffer: Buffer, observer: Observer, address: int):
        """Stand for `raw`, all or a view of `buffer`, beginning at `address` of the imagined device."""
        self.raw, self.buffer, self.observer, self.address = raw, buffer, observer, address
        self.shape, self.strides, self.itemsize, self.dtype = raw.shape, raw.strides, raw.itemsize, raw.dtype
        # One view for each field, kept, because `states[i].mean` makes the view again at every access otherwise.
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
        # Element by element through __getitem__, so that each load is reported.
        return (self[index] for index in range(len(self.raw)))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of `raw`; views are observed, too, be it the attribute (T) or a result (reshape)."""
        value = getattr(self.raw, name)
        if isinstance(value, np.ndarray):
            return self.viewed(value)
        if callable(value):
            # A method of the raw array: a view that it returns must not escape the observer.
            return lambda *arguments, **keywords: self._result(value(*arguments, **keywords))
        return value

    def _result(self, value: Any) -> Any:
        # A copy, such as `x.copy()`, is new memory that no other thread reaches.
        return self.viewed(value) if isinstance(value, np.ndarray) and np.may_share_memory(value, self.raw) else value

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, out: tuple = (), **keywords: Any) -> Any:
        """Do what NumPy's function does, element by element: `np.sin(x, out)` in a kernel is a loop."""
        # `elements` reads one after another through __getitem__, so each load is reported.
        plain = [elements(part) if isinstance(part, ObservedArray) else part for part in inputs]
        result = getattr(function, method)(*plain, **keywords)
        for target, values in zip(out, result if isinstance(result, tuple) else (result,), strict=False):
            # One store after another through __setitem__: a race in a NumPy function is a race like any other.
            for index in np.ndindex(target.shape):
                target[index] = np.broadcast_to(values, target.shape)[index]
        return out[0] if len(out) == 1 else out or result

    def viewed(self, view: np.ndarray) -> "ObservedArray":
        """Return a view of `raw` as an observed array of the same buffer."""
        # The distance on the host is the distance on the device; of a reversed view it goes to the last element.
        return type(self)(view, self.buffer, self.observer, self.address + pointer(view) - pointer(self.raw))

    def field(self, name: str) -> "ObservedArray":
        """Return the field `name` of an array of records."""
        # A strided view of the records' own memory: its accesses race with those of whole records.
        if name not in self.fields:
            self.fields[name] = self.viewed(as_kernel_array(np.asarray(self.raw)[name]))
        return self.fields[name]


def elements(array: ObservedArray) -> np.ndarray:
    """Return a copy of an array's elements, each of them read."""
    copy = as_kernel_array(np.array(array.raw))  # which can store records
    for index in np.ndindex(array.shape):
        copy[index] = array[index]
    return np.asarray(copy)


class ObservedRecord:
    """One element of an array of records: `states[i].s0`, `states[i]["s0"]`."""

    __slots__ = ("_array", "_key")

    def __init__(self, array: ObservedArray, key: Any):
        """Stand for `array[key]`."""
        # Past the class's own __setattr__, which would store a field of that name into the array.
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_key", key)

    def __getattr__(self, name: str) -> Any:
        """Return a field's value."""
        return self._array.field(name)[self._key]

    def __setattr__(self, name: str, value: Any) -> None:
        """Store a field's value."""
        self._array.field(name)[self._key] = value

    __getitem__, __setitem__ = __getattr__, __setattr__

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Return the record, every field of it loaded: NumPy asks when it is stored into an array without observer."""
        for name in self._array.raw.dtype.names or ():
            self[name]
        return np.asarray(self._array.raw[self._key])


def plain_array(array: Any) -> np.ndarray:
    """Return the NumPy array of a kernel's array, observed or not."""
    return array.raw if isinstance(array, ObservedArray) else array


ADDRESSES = 256  # kept at a time
_addresses: dict[int, tuple[ref, int]] = {}


def pointer(array: np.ndarray) -> int:
    """Return the host address of an array's first element; keep it, because every vector access asks for it."""
    # Another array may have the id of one that has died: only the weak reference tells whose address this is.
    kept = _addresses.get(id(array))
    if kept is not None and kept[0]() is array:
        return kept[1]
    address = int(array.__array_interface__["data"][0])  # takes NumPy a microsecond
    # All of them go at once, those of dead arrays too: what is still in use is soon asked for again.
    if len(_addresses) >= ADDRESSES:
        _addresses.clear()
    _addresses[id(array)] = ref(array), address
    return address


_base_of: Any = np.ndarray.base.__get__  # records may have a field of that name


def allocation_of(array: np.ndarray) -> tuple[int, int, Any]:
    """Return the host address, the bytes and the owner of the memory that `array` is a view of.

    NumPy knows the array that a view is made of, a torch tensor its storage, anything else its buffer.
    """
    owner = array
    # A view of a view has the first view as its base: go down to the array that owns the memory.
    while isinstance(base := _base_of(owner), np.ndarray):
        owner = base
    # Two tensors of one storage share an allocation on the device, too, however they were sliced.
    if hasattr(base, "untyped_storage"):
        storage = base.untyped_storage()
        return storage.data_ptr(), storage.nbytes(), owner
    # An array over foreign memory, such as np.frombuffer's: two arrays over one buffer share an allocation, too.
    with suppress(TypeError, ValueError, BufferError):
        memory: Any = base.obj if isinstance(base, memoryview) else base
        whole = np.frombuffer(memory, np.uint8)
        return pointer(whole), whole.nbytes, owner
    # No buffer, the usual case: the owner has its memory to itself.
    low, high = byte_bounds(owner)
    return low, high - low, owner


def offset_of(array: ObservedArray, key: Any) -> int | None:
    """Return one element's offset from the array's beginning, in bytes; None if `key` selects several elements.

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
