"""Arrays in GPU memory, whoever allocated it, and what the host has to know about them."""

from math import prod
from typing import Any

import numpy as np
from numba import cuda

from normlab.engine.compile.signatures import DeviceArray
from normlab.engine.launching.driver import DriverError, driver
from normlab.engine.launching.worlds import use_gpu

SIMULATED_MULTIPROCESSORS = 132  # an H200's


def device_empty(shape: tuple[int, ...], dtype: Any, device: int = 0) -> DeviceArray:
    """Uninitialised GPU memory for an array of this shape and dtype."""
    dtype = np.dtype(dtype)
    with cuda.gpus[device]:
        # bytes, because Numba's own arrays do not know every dtype; one at least, because no driver gives out none
        owner = cuda.device_array(max(1, prod(shape) * dtype.itemsize), np.uint8)
    return DeviceArray(owner.device_ctypes_pointer.value or 0, tuple(shape), dtype, device, owner)


def device_zeros(shape: tuple[int, ...], dtype: Any, device: int, stream: int) -> DeviceArray:
    """GPU memory for an array of this shape and dtype, which work queued on a stream, given by its handle, makes 0."""
    view = device_empty(shape, dtype, device)
    size = prod(shape) * view.dtype.itemsize
    if size:
        driver().clear(view.pointer, size, stream, device)
    return view


def to_device(array: np.ndarray, device: int = 0) -> DeviceArray:
    """A copy of a host array in GPU memory."""
    view = device_empty(array.shape, array.dtype, device)
    if array.size:
        with cuda.gpus[device]:
            view.owner.copy_to_device(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return view


def to_host(view: DeviceArray) -> np.ndarray:
    """A copy of an array that was made here, in host memory."""
    size = prod(view.shape) * view.dtype.itemsize
    with cuda.gpus[view.device]:
        return view.owner.copy_to_host()[:size].view(view.dtype).reshape(view.shape)


def numba_array(view: DeviceArray, shape: tuple[int, ...]) -> Any:
    """An array that was made here as Numba's own device array, C-contiguous, of another shape."""
    size = prod(shape) * view.dtype.itemsize
    return view.owner[:size].view(view.dtype).reshape(shape)


def device_of(pointer: int) -> int:
    """The number of the GPU whose memory a pointer points into."""
    if not pointer:  # of an array without elements
        return cuda.get_current_device().id
    try:
        return driver().device_of(pointer)
    except DriverError as error:
        raise ValueError(str(error)) from None


def multiprocessors(array: DeviceArray | np.ndarray) -> int:
    """How many multiprocessors the GPU has that computes on an array; an H200's 132 in the simulator."""
    device = _computing_device(array)
    return SIMULATED_MULTIPROCESSORS if device is None else driver().multiprocessors(device)


def compute_capability(array: DeviceArray | np.ndarray) -> tuple[int, int]:
    """The compute capability of the GPU that computes on an array; an H200's (9, 0) in the simulator."""
    device = _computing_device(array)
    return (9, 0) if device is None else driver().compute_capability(device)


def _computing_device(array: DeviceArray | np.ndarray) -> int | None:
    """The number of the GPU that computes on an array, as `launch` does; None: the simulator does."""
    if isinstance(array, DeviceArray):
        return array.device
    return 0 if use_gpu() else None


def synchronize(stream: int | None, *, unless: int) -> None:
    """Wait for the work queued on a stream, given by its handle, unless later work goes to that stream anyway."""
    if stream and stream != unless:
        cuda.external_stream(stream).synchronize()
