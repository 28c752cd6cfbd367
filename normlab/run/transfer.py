"""Move the arguments of a launch as Numba does: device arrays stay, host arrays are copied to the device and back."""

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from normlab.run.allocate import copied
from normlab.run.interface import as_cuda_array, is_foreign
from normlab.run.memory import DeviceArray, HostMappedArray
from normlab.run.poison import uninitialised


class InOut:
    """The marker `cuda.InOut(array)`: the array is copied to the device and back, as host arrays are by default."""

    def __init__(self, value: Any):
        """Mark a host array."""
        self.value = value


class In(InOut):
    """The marker `cuda.In(array)`: the array is copied to the device only."""


class Out(InOut):
    """The marker `cuda.Out(array)`: the array is copied back only; the kernel gets uninitialised memory."""


class Transfer:
    """The arguments of one launch in device memory, and the functions that copy results back to the host."""

    def __init__(self, kernel: str, arguments: tuple):
        """Move `arguments`. Raise TypeError or ValueError if Numba could not move one of them."""
        self.back: list[Callable[[], None]] = []
        self.fresh: list[np.ndarray] = []
        self.values = []
        for position, argument in enumerate(arguments, start=1):
            try:
                self.values.append(self.moved(argument))
            except TypeError as error:
                raise TypeError(f"argument {position} of kernel {kernel!r} {error}") from None

    def moved(self, argument: Any) -> Any:
        """Return one argument in the form that the kernel gets."""
        hint = type(argument) if isinstance(argument, InOut) else InOut
        value = argument.value if isinstance(argument, InOut) else argument
        if isinstance(value, tuple):
            moved = [self.moved(item) for item in value]
            return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
        if is_foreign(value):
            value = as_cuda_array(value)
        if isinstance(value, DeviceArray):
            if value.allocation.fresh:
                self.fresh.append(value.memory)
            return value.memory
        if isinstance(value, HostMappedArray):
            return np.asarray(value)
        if isinstance(value, (np.ndarray, np.void)):
            return self.copied(np.asarray(value), hint)
        if value is None or not isinstance(value, (bool, int, float, complex, np.generic, Enum)):
            raise TypeError(f"is a {type(value).__name__}; kernels take host or device arrays and numbers")
        return value

    def copied(self, host: np.ndarray, hint: type[InOut]) -> np.ndarray:
        """Return a copy of `host`, and queue the copy back if `hint` and the array allow it."""
        memory = copied(host)
        if hint is Out:
            memory = uninitialised(host.shape, host.dtype, host.strides)
            self.fresh.append(memory)
        if not host.flags.writeable:
            memory.flags.writeable = False
        elif hint is not In:
            self.back.append(lambda: np.copyto(host, memory))
        return memory
