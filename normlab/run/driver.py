"""Imitate the few functions of CUDA's driver that Numba's own memory manager calls, on simulated memory.

Numba's classes for raw memory (`context.memalloc`, `memhostalloc`, `memallocmanaged`, the queue of deallocations) stay
Numba's. Only what they ask of the driver is here, under the driver's names. An address is that of host memory.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from normlab.run.memory import MEMORY, Allocation
from normlab.run.numba_host import driver
from normlab.run.poison import poisoned

_kept: dict[int, Allocation] = {}  # address → memory that Numba's manager owns, until it frees it


def _allocate(size: int) -> int:
    allocation = Allocation(poisoned((max(1, size),), np.dtype(np.uint8)), fresh=True)
    address = allocation.memory.ctypes.data
    _kept[address] = allocation
    return address


def _on_device(size: int, *flags: int) -> Any:
    return driver.binding.CUdeviceptr(_allocate(size))


def _free(address: Any) -> None:
    _kept.pop(int(address), None)


def _range(address: int) -> tuple[int, int]:
    allocation = Allocation.at(address)
    return allocation.memory.ctypes.data, allocation.memory.nbytes


def _copy(target: Any, source: Any, size: int, *stream: Any) -> None:
    ctypes.memmove(int(target), int(source), size)


def _fill(target: Any, byte: int, size: int, *stream: Any) -> None:
    ctypes.memset(int(target), byte, size)


VERSION = 13, 0  # of CUDA
COPIES = (f"cuMemcpy{way}{late}" for way in ("HtoD", "DtoH", "DtoD") for late in ("", "Async"))
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("cuMemAlloc", "cuMemAllocManaged"), _on_device),
    "cuMemHostAlloc": lambda size, flags: _allocate(size),
    **dict.fromkeys(("cuMemFree", "cuMemFreeHost"), _free),
    **dict.fromkeys(("cuMemHostRegister", "cuMemHostUnregister"), lambda *given: None),
    "cuMemHostGetDevicePointer": lambda pointer, flags: driver.binding.CUdeviceptr(int(pointer)),
    "cuMemGetInfo": lambda: (MEMORY - Allocation.in_use, MEMORY),
    "cuMemGetAddressRange": _range,
    **dict.fromkeys(COPIES, _copy),
    **dict.fromkeys(("cuMemsetD8", "cuMemsetD8Async"), _fill),
    "cuCtxSynchronize": lambda: None,
    "cuDeviceGetCount": lambda: 1,
    "cuDriverGetVersion": lambda: 1000 * VERSION[0] + 10 * VERSION[1],
}
