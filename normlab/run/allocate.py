"""Allocate memory for a program, and say where an array lies: `cuda.to_device`, `device_array`, `pinned_array`, …

Fresh memory holds NaN, or the byte 0x5a (`poison.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from normlab.run.interface import as_cuda_array, is_cuda_array
from normlab.run.memory import Allocation, DeviceArray, HostMappedArray, check_contiguous, core_of
from normlab.run.poison import uninitialised


def copied(host: Any) -> np.ndarray:
    """Return a host array (or record) as new device memory of the same shape and strides."""
    array = np.asanyarray(host)
    check_contiguous(array)
    return np.array(array, order="K", subok=False)


def copied_core(host: Any) -> np.ndarray:
    """Return a host array as new device memory; an axis that repeats one element (stride 0) does so there, too."""
    array = np.asanyarray(host)
    if not (array.size and 0 in array.strides):
        return copied(array)
    core = copied(core_of(array))
    kept = iter(core.strides)  # of the axes that do not repeat, in order
    return as_strided(core, array.shape, [next(kept) if stride else 0 for stride in array.strides])


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: DeviceArray | None = None) -> DeviceArray:
    """Return a copy of a host array on the device; return a device array unchanged.

    copy: False to allocate without copying. to: the device array to copy into, which is returned.
    """
    if to is not None:
        if copy:
            to.copy_to_device(obj, stream)
        return to
    if isinstance(obj, (DeviceArray, HostMappedArray)):
        return obj  # type: ignore[return-value]
    if is_cuda_array(obj):
        return as_cuda_array(obj)
    if copy:
        return DeviceArray.of(copied_core(obj), stream=stream)
    host = np.asanyarray(obj)
    check_contiguous(host)  # as Numba does, although nothing is copied
    return device_array_like(host, stream)


def device_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0
) -> DeviceArray:
    """Return an uninitialised device array."""
    memory = uninitialised(shape, dtype, strides, order)
    return DeviceArray.of(memory, Allocation(memory, fresh=True), stream)


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
    """Return shape, dtype and strides for a new array without gaps, whose axes are ordered in memory as `array`'s."""
    like = np.empty_like(getattr(array, "memory", array), order="K", subok=False)
    return {"shape": like.shape, "dtype": like.dtype, "strides": like.strides}


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
    arrays = [DeviceArray.of(array, stream=stream) for array in arylist]
    yield arrays[0] if len(arrays) == 1 else arrays


def is_cuda_ndarray(obj: Any) -> bool:
    """Return whether `obj` is one of Numba's own device arrays, here one of ours."""
    return getattr(obj, "__cuda_ndarray__", False)
