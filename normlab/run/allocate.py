"""Allocate memory for a program, and say where an array lies: `cuda.to_device`, `device_array`, `pinned_array`, …

Fresh memory holds NaN, or the byte 0x5a (`poison.py`).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from normlab.run.interface import as_cuda_array, is_cuda_array
from normlab.run.memory import Allocation, DeviceArray, HostMappedArray, check_contiguous
from normlab.run.poison import poisoned


def copied(host: Any) -> np.ndarray:
    """Return a host array (or record) as new device memory of the same shape and strides."""
    array = np.asanyarray(host)
    check_contiguous(array)
    return np.array(array, order="K", subok=False)


def uninitialised(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> np.ndarray:
    """Return fresh memory. Raise TypeError or ValueError for an invalid shape, strides or order."""
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not all(isinstance(extent, (int, np.integer)) for extent in extents):
        raise TypeError(f"shape must be an integer or tuple of integers, not {shape!r}")
    if order not in ("C", "F"):
        raise ValueError("must be either C/F order")
    dtype, extents = np.dtype(dtype), tuple(int(extent) for extent in extents)
    if strides is None or 0 in extents:
        axes = extents if order == "C" else extents[::-1]
        memory = poisoned(axes, dtype)
        return memory if order == "C" else memory.T
    strides = strides if isinstance(strides, (tuple, list)) else (strides,)
    if len(strides) != len(extents):
        raise ValueError("strides not match ndim")
    span = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True)) + dtype.itemsize
    flat = poisoned((math.ceil(span / dtype.itemsize),), dtype)
    return np.lib.stride_tricks.as_strided(flat, extents, strides)


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: DeviceArray | None = None) -> DeviceArray:
    """Return a copy of a host array on the device; return a device array unchanged."""
    if to is not None:
        if copy:
            to.copy_to_device(obj, stream)
        return to
    if isinstance(obj, (DeviceArray, HostMappedArray)):
        return obj  # type: ignore[return-value]
    if is_cuda_array(obj):
        return as_cuda_array(obj)
    if copy:
        return DeviceArray(copied(obj), stream=stream)
    return device_array_like(np.asanyarray(obj), stream)


def device_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0
) -> DeviceArray:
    """Return an uninitialised device array."""
    memory = uninitialised(shape, dtype, strides, order)
    return DeviceArray(memory, Allocation(memory, fresh=True), stream)


def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> np.ndarray:
    """Return a host array; here nothing needs pinning."""
    return uninitialised(shape, dtype, strides, order)


def mapped_array(
    shape: Any,
    dtype: Any = np.float64,
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    portable: bool = False,
    wc: bool = False,
) -> HostMappedArray:
    """Return a host array that kernels see without a copy."""
    return HostMappedArray.of(uninitialised(shape, dtype, strides, order), stream)


def managed_array(
    shape: Any,
    dtype: Any = np.float64,
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    attach_global: bool = True,
) -> HostMappedArray:
    """Return an array that host and kernels share."""
    return HostMappedArray.of(uninitialised(shape, dtype, strides, order), stream)


def _layout_of(array: Any) -> dict[str, Any]:
    """Return shape, dtype and order of `array` for a new contiguous one."""
    flags = array.flags
    fortran = flags["F_CONTIGUOUS"] and not flags["C_CONTIGUOUS"]
    return {"shape": array.shape, "dtype": array.dtype, "order": "F" if fortran else "C"}


def device_array_like(ary: Any, stream: Any = 0) -> DeviceArray:
    """Return an uninitialised device array with the shape, dtype and order of `ary`."""
    return device_array(**_layout_of(ary), stream=stream)


def pinned_array_like(ary: Any) -> np.ndarray:
    """Return a host array of the shape, dtype and order of `ary`."""
    return pinned_array(**_layout_of(ary))


def mapped_array_like(ary: Any, stream: Any = 0, portable: bool = False, wc: bool = False) -> HostMappedArray:
    """Return a host array of the shape, dtype and order of `ary` that kernels see without a copy."""
    return mapped_array(**_layout_of(ary), stream=stream)


@contextmanager
def pinned(*arylist: np.ndarray) -> Iterator[None]:
    """Do nothing: here no host memory needs pinning."""
    yield


@contextmanager
def mapped(*arylist: np.ndarray, stream: Any = 0) -> Iterator[Any]:
    """Give the arrays (or the only one) to the device for the length of a `with` block, without a copy."""
    arrays = [DeviceArray(array, stream=stream) for array in arylist]
    yield arrays[0] if len(arrays) == 1 else arrays


def is_cuda_ndarray(obj: Any) -> bool:
    """Return whether `obj` is one of Numba's own device arrays, here one of ours."""
    return getattr(obj, "__cuda_ndarray__", False)
