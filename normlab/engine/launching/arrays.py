"""Allocate and copy arrays in GPU memory, and ask which GPU holds an array and what that GPU can do."""

from math import prod
from typing import Any

import numpy as np
from numba import cuda

from normlab.engine.compile.signatures import DeviceArray
from normlab.engine.launching.driver import DriverError, driver
from normlab.engine.launching.worlds import use_gpu

SIMULATED_MULTIPROCESSORS = 132  # as on an H200


def device_empty(shape: tuple[int, ...], dtype: Any, device: int = 0) -> DeviceArray:
    """Allocate an uninitialised array in GPU memory."""
    dtype = np.dtype(dtype)
    with cuda.gpus[device]:
        # Bytes, because Numba's own arrays do not know every dtype. At least 1: the driver refuses to allocate 0 bytes.
        owner = cuda.device_array(max(1, prod(shape) * dtype.itemsize), np.uint8)
    return DeviceArray(owner.device_ctypes_pointer.value or 0, tuple(shape), dtype, device, owner)


def device_zeros(shape: tuple[int, ...], dtype: Any, device: int, stream: int) -> DeviceArray:
    """Allocate an array in GPU memory and queue work on the stream with this handle that sets its bytes to 0."""
    view = device_empty(shape, dtype, device)
    size = prod(shape) * view.dtype.itemsize
    if size:
        driver().clear(view.pointer, size, stream, device)
    return view


def to_device(array: np.ndarray) -> DeviceArray:
    """Copy a host array to the memory of GPU 0; return the copy."""
    view = device_empty(array.shape, array.dtype)
    if array.size:
        with cuda.gpus[0]:
            view.owner.copy_to_device(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return view


def to_host(view: DeviceArray) -> np.ndarray:
    """Copy an array that `device_empty` allocated to host memory; return the copy."""
    size = prod(view.shape) * view.dtype.itemsize
    with cuda.gpus[view.device]:
        return view.owner.copy_to_host()[:size].view(view.dtype).reshape(view.shape)


def numba_array(view: DeviceArray, shape: tuple[int, ...]) -> Any:
    """Return an array that `device_empty` allocated as Numba's own device array, C-contiguous, with this shape."""
    size = prod(shape) * view.dtype.itemsize
    return view.owner[:size].view(view.dtype).reshape(shape)


def device_of(pointer: int) -> int:
    """Return the number of the GPU whose memory a pointer points into. Raise ValueError if the driver knows none."""
    if not pointer:  # an array without elements has no address
        return cuda.get_current_device().id
    try:
        return driver().device_of(pointer)
    except DriverError as error:
        raise ValueError(str(error)) from None


def multiprocessors(array: DeviceArray | np.ndarray) -> int:
    """Return how many multiprocessors the GPU that computes on an array has; in the simulator 132, as on an H200."""
    device = _computing_device(array)
    return SIMULATED_MULTIPROCESSORS if device is None else driver().multiprocessors(device)


def compute_capability(array: DeviceArray | np.ndarray) -> tuple[int, int]:
    """Return the compute capability of the GPU that computes on an array; in the simulator (9, 0), as on an H200."""
    device = _computing_device(array)
    return (9, 0) if device is None else driver().compute_capability(device)


def _computing_device(array: DeviceArray | np.ndarray) -> int | None:
    """Return the number of the GPU on which `launch` computes with an array; None if the simulator computes."""
    if isinstance(array, DeviceArray):
        return array.device
    return 0 if use_gpu() else None


def synchronize(stream: int | None, *, unless: int) -> None:
    """Wait for the work queued on the stream with this handle; do nothing if there is no handle or it is `unless`.

    unless: the stream of the later work, which its own stream orders without waiting.
    """
    if stream and stream != unless:
        cuda.external_stream(stream).synchronize()
