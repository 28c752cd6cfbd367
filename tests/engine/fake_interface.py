"""NumPy arrays taken for arrays with `__cuda_array_interface__` on GPU 0 of a fake driver, and its memory."""

from math import prod

import numpy as np

from normlab import engine
from normlab.engine import DeviceArray
from normlab.engine.launching import arrays


class Interface:
    """An array's contents, and the stream that they are made on."""

    def __init__(self, array, stream):
        self.array, self.shape = array, array.shape
        pointer, typestr = (array.ctypes.data, False), array.dtype.str
        self.__cuda_array_interface__ = {
            "shape": array.shape, "strides": None, "data": pointer, "typestr": typestr, "stream": stream, "version": 3,
        }  # fmt: skip


def fake_memory(monkeypatch):
    """Let the GPU's memory be the host's; what nothing has written is NaN, and -1 in a counter."""

    def device_empty(shape, dtype, device=0):
        owner = np.full(max(1, prod(shape) * np.dtype(dtype).itemsize), 255, np.uint8)
        return DeviceArray(owner.ctypes.data, tuple(shape), np.dtype(dtype), device, owner)

    for module in (engine, arrays):
        monkeypatch.setattr(module, "device_empty", device_empty)
