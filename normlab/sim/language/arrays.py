"""Turn arrays and values of the host into what a kernel sees.

Float arrays stay plain NumPy arrays, because a norm kernel spends its time indexing them. Integer arrays become one
of two subclasses that store with C's wrap-around and load narrow integers as 64-bit values, as Numba computes.
Every argument, and every array that a kernel names from outside, enters the kernel through `adopt`.
"""

import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from normlab.sim.language.integers import CASTS_OF_DTYPES, WITH_LOADS_OF_THEIR_OWN, IntegerCast, adopt_scalar

SCALARS = (bool, int, float, complex, np.number, np.bool_, np.datetime64, ml_dtypes.bfloat16, Enum)


def store_wrapped(store: Callable[[Any, Any], None], key: Any, value: Any, dtype: np.dtype) -> None:
    """Call `store(key, value)`, NumPy's own, with what a device stores of `value` into memory of `dtype`."""
    cast = CASTS_OF_DTYPES.get(dtype)
    if cast is None:  # no integers
        store(key, value)
        return
    # NumPy raises for inf and NaN, and does not define what a float out of range becomes; cvt.rzi saturates.
    if isinstance(value, (float, np.floating)):
        value = cast(value)
    try:
        store(key, value)
    except (OverflowError, ValueError):  # too large, or a NaN
        if not isinstance(value, (int, float, np.number)):
            raise
        store(key, cast(value))


class WrappingArray(np.ndarray):
    """An integer array whose stores wrap, as a device's do."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store `value` modulo 2**bits; a float is truncated toward zero, as far as it does not saturate."""
        store_wrapped(super().__setitem__, key, value, self.dtype)


# A load by a method in Python takes more than ten times as long as NumPy's own. So only the dtypes that need it get
# this class: int64 arrays do with `WrappingArray`, whose loads are NumPy's.
class NarrowArray(WrappingArray):
    """An integer array of uint64 or of elements narrower than 64 bits, whose loads compute with others as in Numba."""

    def __getitem__(self, key: Any) -> Any:
        """Return one element as a 64-bit integer that knows its width, or a view."""
        value = super().__getitem__(key)
        if isinstance(value, np.ndarray):
            return value
        holder = WITH_LOADS_OF_THEIR_OWN.get(self.dtype)  # none for a view as floats
        return value if holder is None else holder(value)


class Record(np.void):  # type: ignore[misc]  # final in NumPy's stubs, and yet the base of np.record
    """A record in an array's memory, which has its fields by name: `states[i].s0`, `states[i]["s0"]`."""

    def __getattribute__(self, name: str) -> Any:
        """Return a field's value, also of a field whose name is an attribute's of NumPy, such as `real`."""
        # Not `self.dtype`, which would come back to this method.
        fields = np.void.__getattribute__(self, "dtype").fields
        return self[name] if name in fields else np.void.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Store a field's value."""
        self[name] = value

    def __getitem__(self, name: Any) -> Any:
        """Return a field's value: a number as arrays load it, an array, or a record."""
        value = super().__getitem__(name)
        if isinstance(value, np.ndarray):
            return as_kernel_array(value)
        if isinstance(value, np.void):
            return value.view((Record, value.dtype))
        holder = WITH_LOADS_OF_THEIR_OWN.get(value.dtype)
        return value if holder is None else holder(value)

    def __setitem__(self, name: Any, value: Any) -> None:
        """Store a field's value as arrays do."""
        fields = np.void.__getattribute__(self, "dtype").fields
        store_wrapped(super().__setitem__, name, value, fields[name][0])


class RecordArray(np.ndarray):
    """An array of records, which has their fields by name, as arrays: `states.s0[i]`, `states["s0"][i]`."""

    def __getattr__(self, name: str) -> Any:
        """Return the array of a field."""
        if name in (self.dtype.names or ()):
            return self[name]
        raise AttributeError(f"an array of records has no attribute {name!r}, and they have no such field")

    def __getitem__(self, key: Any) -> Any:
        """Return a record, a field's array, or a view."""
        value = super().__getitem__(key)
        # NumPy gives a field's array the class of this one.
        return as_kernel_array(np.asarray(value)) if isinstance(key, str) else value

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store a record, which may be one of an array that an observer watches (machine/observed.py)."""
        super().__setitem__(key, value.__array__() if hasattr(value, "__array__") else value)


# What NumPy's arrays have and Numba's do not: of an array of records it is the field of that name, if there is one.
NOT_NUMBAS = (
    *(
        "argpartition",
        "argsort",
        "base",
        "byteswap",
        "choose",
        "compress",
        "data",
        "device",
        "diagonal",
        "dump",
        "dumps",
    ),
    *("getfield", "mT", "partition", "put", "resize", "round", "searchsorted", "setfield", "setflags", "squeeze"),
    *("swapaxes", "to_device", "tobytes", "tofile", "tolist", "trace"),
)


def _field_or_attribute(name: str) -> property:
    def found(self: RecordArray) -> Any:
        return self[name] if name in (self.dtype.names or ()) else getattr(super(RecordArray, self), name)

    return property(found)


for _name in NOT_NUMBAS:
    setattr(RecordArray, _name, _field_or_attribute(_name))


def as_kernel_array(array: np.ndarray) -> np.ndarray:
    """Return a view of `array` with the loads and stores of a device."""
    if array.dtype in WITH_LOADS_OF_THEIR_OWN:
        return array.view(NarrowArray)
    if array.dtype.kind in "iu":
        return array.view(WrappingArray)
    if array.dtype.names:
        return array.view(np.dtype((Record, array.dtype)), RecordArray)
    return array.view()  # a new object, because addresses are kept per object (observed.py)


def is_record(value: Any) -> bool:
    """Return whether an adopted argument is a record: the host has it as an array without axes."""
    return isinstance(value, RecordArray) and not value.ndim


def adopt(value: Any) -> Any:
    """Return a host value (NumPy array, torch CPU tensor, scalar, tuple of these) as a kernel sees it, sharing its
    memory.

    Raises TypeError, in words that continue "argument 2 …", for anything that a kernel cannot take.
    """
    if isinstance(value, tuple):
        # A named tuple takes its fields as separate arguments, a tuple takes one iterable.
        return type(value)(*map(adopt, value)) if hasattr(value, "_fields") else tuple(map(adopt, value))
    if is_tensor(value):
        value = array_of_tensor(value)
    if isinstance(value, np.ndarray):
        # bfloat16 is ml_dtypes' own type: NumPy gives it kind "V", which stands for records.
        if value.dtype.kind in "biufcmMSU" or value.dtype.names or value.dtype == ml_dtypes.bfloat16:
            return as_kernel_array(value)
        raise TypeError(f"is an array of {value.dtype}; kernels take arrays of numbers and of text")
    if value is None or isinstance(value, SCALARS):
        return adopt_scalar(value)
    kind = type(value).__name__
    # CuPy and Numba's device arrays: reading them here would need a driver, and the copy should be the caller's choice.
    if hasattr(value, "__cuda_array_interface__"):
        raise TypeError(
            f"is a {kind} in a GPU's memory; the simulator takes host memory: copy it to a NumPy array first"
        )
    raise TypeError(f"is a {kind}; kernels take NumPy arrays, torch CPU tensors and numbers")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor, by its module's name: nothing imports torch for a program without."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def array_of_tensor(tensor: Any) -> np.ndarray:
    """Return a NumPy view of a torch CPU tensor; NumPy itself has no bfloat16, so that travels as int16."""
    if tensor.device.type != "cpu":
        raise TypeError(f"is a tensor on {tensor.device}; the simulator takes host memory: call .cpu() first")
    torch = sys.modules["torch"]
    if tensor.dtype == torch.bfloat16:
        # A view as integers shares the memory, so the kernel's stores reach the tensor; `.float()` would make a copy.
        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    # Detached, because torch gives no array of a tensor that requires a gradient.
    return tensor.detach().numpy()


def dtype_of(kind: Any) -> np.dtype:
    """Return the NumPy dtype that a kernel names: a cast, a NumPy or Numba type, a string."""
    if isinstance(kind, IntegerCast):
        return kind.dtype
    return np.dtype(getattr(kind, "dtype", None) or kind) if not isinstance(kind, type) else np.dtype(kind)


def shape_of(shape: Any) -> tuple[int, ...]:
    """Return `shape` as a tuple; raises TypeError unless it is an int or a tuple of ints."""
    extents = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(extent, (int, np.integer)) for extent in extents):
        raise TypeError(f"the shape of an array in a kernel must be an int or a tuple of ints, not {shape!r}")
    return tuple(int(extent) for extent in extents)
