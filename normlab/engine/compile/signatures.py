"""From a launch's arguments to what a kernel is compiled for, and to the parameters that the driver hands it."""

import sys
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64

from normlab.engine.compile.compiler import from_dtype, types

DATA = 4  # which of an array's parameters is the pointer to its elements


class DeviceArray(NamedTuple):
    """A C-contiguous (or, with `strides`, any) array in GPU memory, whoever allocated it.

    `owner` keeps the memory alive. `dtype` is a NumPy dtype; bfloat16 is `ml_dtypes.bfloat16`.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    device: int
    owner: Any
    strides: tuple[int, ...] | None = None  # bytes; None: C-contiguous


def accumulator(statistics: Any) -> Any:
    """The Numba type that a kernel computes in: that of the statistics it writes, float64 for float64 input."""
    return float64 if statistics.dtype == np.float64 else float32


def dimensions(size: int | tuple) -> tuple[int, int, int]:
    """A grid or block size as three ints."""
    sizes = size if isinstance(size, tuple) else (size,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"a grid or a block has one to three dimensions, got {size}")
    if not all(1 <= number < 2**31 for number in sizes):
        raise ValueError(f"the dimensions of a grid or a block are at least 1 and below 2**31, got {size}")
    x, y, z = (*sizes, 1, 1)[:3]
    return int(x), int(y), int(z)


def kind_of(arg: Any) -> Any:
    """What a kernel is compiled for: None, the dtype of a scalar, or (dtype, dimensions, layout) of an array."""
    if arg is None:
        return None
    if isinstance(arg, DeviceArray):
        return arg.dtype, len(arg.shape), "C" if arg.strides is None else "A"
    if isinstance(arg, (bool, int, float, np.generic)):
        return np.asarray(arg).dtype
    raise TypeError(
        "a launch takes arrays that are all on the host or all on the device, numbers and None, "
        f"but got {type(arg).__module__}.{type(arg).__qualname__}"
    )


def kinds_of_types(types: tuple) -> tuple:
    """The kinds that `compile_ptx`'s `types` stand for: its arrays are C-contiguous."""
    return tuple((np.dtype(entry[0]), entry[1], "C") if isinstance(entry, tuple) else entry for entry in types)


def numba_type(kind: Any) -> Any:
    """The Numba type of a kind."""
    if kind is None:
        return types.none
    dtype, *array = kind if isinstance(kind, tuple) else (kind,)
    scalar = from_dtype(np.dtype(dtype))
    return types.Array(scalar, *array) if array else scalar


def parameters(arg: Any) -> list[bytes]:
    """One launch argument as the kernel parameters of Numba's calling convention.

    An array is: meminfo, parent, number of items, bytes an item, data, shape…, strides…, each of 8 bytes; None is one
    null pointer.
    """
    if arg is None:
        return [bytes(8)]
    if isinstance(arg, DeviceArray):
        strides = arg.strides or _contiguous_strides(arg)
        numbers = 0, 0, prod(arg.shape), arg.dtype.itemsize, arg.pointer, *arg.shape, *strides
        return [(int(number) % 2**64).to_bytes(8, sys.byteorder) for number in numbers]
    return [np.asarray(arg).tobytes()]


def _contiguous_strides(view: DeviceArray) -> tuple[int, ...]:
    steps = [view.dtype.itemsize]
    for size in reversed(view.shape[1:]):
        steps.insert(0, steps[0] * size)
    return tuple(steps[: len(view.shape)])
