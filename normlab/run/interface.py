"""Exchange arrays with other libraries: the CUDA array interface, and PyTorch's tensors on the CPU.

An address in simulated memory is that of a NumPy array. An interface that a program hands in is therefore
looked up among the live allocations: an address of a real GPU is refused instead of read.
A tensor on the CPU counts as memory of the simulated GPU, because a program that finds no GPU leaves its tensors there.
A kernel's stores reach the tensor without a copy.
"""

import math
from typing import Any

import numpy as np

from normlab.run.device import Stream
from normlab.run.memory import Allocation, DeviceArray, HostMappedArray
from normlab.run.numba_host import config
from normlab.sim.language.arrays import array_of_tensor, is_tensor

REQUIRES_GRAD = (
    "Can't get __cuda_array_interface__ on Variable that requires grad. If gradients aren't required, use var.detach() "
    "to get Variable that doesn't require grad."
)


def is_cuda_array(obj: Any) -> bool:
    """Return whether `obj` is an array in a GPU's memory, simulated or not."""
    return hasattr(obj, "__cuda_array_interface__")


def is_foreign(obj: Any) -> bool:
    """Return whether `obj` is another library's array that `as_cuda_array` takes."""
    return is_tensor(obj) or (is_cuda_array(obj) and not isinstance(obj, (DeviceArray, HostMappedArray)))


def as_cuda_array(obj: Any, sync: bool = True) -> DeviceArray:
    """Return a device array that shares the memory of `obj`. Raise TypeError if it has no CUDA array interface."""
    if isinstance(obj, DeviceArray):
        return obj
    if is_tensor(obj):
        if obj.requires_grad:  # a tensor in a GPU's memory says this
            raise RuntimeError(REQUIRES_GRAD)
        memory = array_of_tensor(obj)
        return DeviceArray.of(memory, Allocation(memory, counted=False))
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError("*obj* doesn't implement the cuda array interface.")
    return from_cuda_array_interface(interface, owner=obj, sync=sync)


def pointed_at(address: int, dtype: np.dtype) -> np.ndarray:
    """Return the elements from an address in simulated memory to the end of its allocation, for a C pointer."""
    allocation = Allocation.at(address)
    count = (allocation.end - address) // dtype.itemsize
    return allocation.view(address, (count,), dtype, None)


def from_cuda_array_interface(desc: dict[str, Any], owner: Any = None, sync: bool = True) -> DeviceArray:
    """Return a device array of the simulated memory that an interface describes.

    Raise NotImplementedError for a mask, and ValueError for an address outside of simulated memory.
    """
    if desc["version"] >= 1 and desc.get("mask") is not None:
        raise NotImplementedError("Masked arrays are not supported")
    shape, dtype, strides = tuple(desc["shape"]), np.dtype(desc["typestr"]), desc.get("strides")
    stream: Any = 0
    if desc.get("stream") is not None:
        stream = Stream(int(desc["stream"]), external=True)
        if sync and config.CUDA_ARRAY_INTERFACE_SYNC:
            stream.synchronize()
    if not math.prod(shape):
        return DeviceArray.of(np.empty(shape, dtype), stream=stream)
    address = desc["data"][0]
    allocation = Allocation.at(address)
    return DeviceArray.of(allocation.view(address, shape, dtype, strides), allocation, stream)
