"""Turn a launch's arguments into the types that a kernel is compiled for, and into the driver's kernel parameters."""

import sys
from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64

from normlab.engine.compile.compiler import from_dtype, types
from normlab.engine.compile.lengths import Names, first_seen


class DeviceArray(NamedTuple):
    """An array in GPU memory, from any allocator. It is C-contiguous unless `strides` is given.

    The reference `owner` keeps the memory alive. `dtype` is a NumPy dtype; bfloat16 is `ml_dtypes.bfloat16`.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    device: int
    owner: Any
    strides: tuple[int, ...] | None = None  # bytes; None: C-contiguous


def accumulator(statistics: Any) -> Any:
    """Return the Numba type that a kernel computes in: float64 if its statistics are float64, else float32."""
    return float64 if statistics.dtype == np.float64 else float32


def dimensions(size: int | tuple) -> tuple[int, int, int]:
    """Return a grid or block size as three ints. Raise ValueError for a size that no launch can have."""
    sizes = size if isinstance(size, tuple) else (size,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"a grid or a block has one to three dimensions, got {size}")
    if not all(1 <= number < 2**31 for number in sizes):
        raise ValueError(f"the dimensions of a grid or a block are at least 1 and below 2**31, got {size}")
    x, y, z = (*sizes, 1, 1)[:3]
    return int(x), int(y), int(z)


def kind_of(arg: Any) -> Any:
    """Return the kind of an argument: None, a scalar's dtype, or an array's (dtype, dimensions, layout).

    A kernel is compiled once for each combination of kinds. The layout is Numba's letter: "C" for C-contiguous, "A" for
    any strides.
    """
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


def kinds_of_types(argument_types: tuple) -> tuple:
    """Return the kinds of arguments that are given by type, as `compile_ptx` takes them.

    An entry is None, a scalar's dtype, or an array's (dtype, dimensions); the arrays are C-contiguous.
    """
    return tuple((np.dtype(one[0]), one[1], "C") if isinstance(one, tuple) else one for one in argument_types)


def numba_type(kind: Any) -> Any:
    """Return the Numba type of a kind."""
    if kind is None:
        return types.none
    dtype, *array = kind if isinstance(kind, tuple) else (kind,)
    scalar = from_dtype(np.dtype(dtype))
    return types.Array(scalar, *array) if array else scalar


def parameters(arg: Any, names: Names, seen: dict[str, int]) -> list[bytes]:
    """Return the kernel parameters that one launch argument becomes (`entries`).

    An array becomes the address of its elements, its lengths without those that earlier arguments have, too, and,
    unless it is C-contiguous, its strides, of 8 bytes each. None becomes nothing.

    Args:
        arg: the argument.
        names: of its lengths (`lengths`).
        seen: the lengths of earlier arguments by name; this argument's are added.
    """
    if arg is None:
        return []
    if isinstance(arg, DeviceArray):
        numbers = arg.pointer, *first_seen(arg.shape, names, seen), *(arg.strides or ())
        # % 2**64: a negative stride in two's complement
        return [(int(number) % 2**64).to_bytes(8, sys.byteorder) for number in numbers]
    return [np.asarray(arg).tobytes()]
