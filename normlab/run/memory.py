"""Imitate device arrays as a program on the host sees them: `copy_to_host`, slices, views.

A `DeviceArray` keeps its elements in a NumPy array that shares no memory with the program's host arrays, so a forgotten
copy gives a wrong result here as on a GPU. `allocate.py` makes device arrays, and `transfer.py` passes
`DeviceArray.memory` to a launch.
"""

import ctypes
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from normlab.run.poison import uninitialised

CONTIGUOUS_NEEDED = (
    "Array contains non-contiguous buffer and cannot be transferred as a single memory region. "
    "Please ensure contiguous buffer with numpy .ascontiguousarray()"
)


MEMORY = 150_109_880_320  # bytes of the simulated GPU


class Allocation:
    """One piece of device memory, counted as in use until Python frees this object."""

    in_use = 0  # bytes of all allocations that exist
    freed: ClassVar[Callable[[int], None]] = staticmethod(lambda nbytes: None)  # called with the bytes of a freed one
    _live: ClassVar["weakref.WeakSet[Allocation]"] = weakref.WeakSet()

    def __init__(self, memory: np.ndarray, fresh: bool = False, counted: bool = True):
        """Count `memory`; `fresh` if it was allocated empty, so that it may hold garbage.

        counted: False for memory that is the host's, too.
        """
        self.fresh, self.memory = fresh, memory
        Allocation._live.add(self)
        if counted:
            Allocation.in_use += memory.nbytes
            weakref.finalize(self, Allocation._freed, memory.nbytes).atexit = False

    @classmethod
    def _freed(cls, nbytes: int) -> None:
        cls.in_use -= nbytes
        cls.freed(nbytes)

    @classmethod
    def at(cls, address: int) -> "Allocation":
        """Return the allocation that an address lies in; raise ValueError if there is none."""
        for allocation in tuple(cls._live):
            first, end = byte_bounds(allocation.memory)
            if first <= address < end:
                return allocation
        raise ValueError(f"no array of normlab run is at the address {address:#x}: a GPU's memory is not simulated")

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return byte_bounds(self.memory)[1]

    def view(self, address: int, shape: tuple[int, ...], dtype: np.dtype, strides: Any) -> np.ndarray:
        """Return the elements at an address of this allocation. Raise ValueError if some lie outside of it."""
        first, end = byte_bounds(self.memory)
        # The element at the lowest address is the last one along each axis of negative stride. From there the whole
        # allocation is seen as bytes, in which the new array may lie anywhere.
        lowest = self.memory[tuple(slice(-1, None) if step < 0 else slice(1) for step in self.memory.strides)]
        raw = as_strided(lowest.reshape(1).view(np.uint8), (end - first,), (1,))
        return np.ndarray(shape, dtype, raw, address - first, strides)


class Pointer(NamedTuple):
    """An address in simulated memory, and how many bytes belong to it."""

    device_pointer: int
    size: int

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """Return the address for a C function."""
        return ctypes.c_void_p(self.device_pointer)


def interface_of(memory: np.ndarray, stream: Any) -> dict[str, Any]:
    """Return version 3 of the CUDA array interface of an array in simulated memory."""
    return {
        "shape": memory.shape,
        "strides": None if memory.flags.c_contiguous else memory.strides,
        "data": (memory.ctypes.data if memory.size else 0, not memory.flags.writeable),
        "typestr": memory.dtype.str,
        "stream": int(stream) if stream else None,
        "version": 3,
    }


def check_stream(stream: Any) -> None:
    """Raise Numba's TypeError for an object that is no stream; 0 and None are the default stream."""
    default = stream is None or (isinstance(stream, (int, np.integer)) and stream == 0)
    if not default and not hasattr(stream, "__cuda_stream__"):
        raise TypeError(f"Expected a Stream object or 0, got the {type(stream).__name__} {stream!r:.60}")


class DeviceArray:
    """An array in the simulated GPU's memory, with the methods of Numba's `DeviceNDArray`.

    `memory` is the NumPy array of its elements. Slices share it; `copy_to_host`, item access and `numpy.asarray` copy.
    Made as Numba's class is; `DeviceArray.of` makes one of memory that exists.
    """

    __cuda_ndarray__ = True
    __cuda_memory__ = True

    def __init__(self, shape: Any, strides: Any, dtype: Any, stream: Any = 0, gpu_data: Any = None):
        """Allocate an uninitialised array, or make one of the memory that `gpu_data` points to."""
        if gpu_data is None or not np.prod(shape):  # an empty array has no address
            memory = uninitialised(shape, dtype, strides)
            self._keep(memory, Allocation(memory, fresh=True), stream)
        else:
            address = gpu_data.device_ctypes_pointer.value
            allocation = Allocation.at(address)
            self._keep(allocation.view(address, shape, np.dtype(dtype), strides), allocation, stream)

    @classmethod
    def of(cls, memory: np.ndarray, allocation: Allocation | None = None, stream: Any = 0) -> "DeviceArray":
        """Wrap `memory`, a part of `allocation` or, by default, an allocation of its own that is already filled."""
        made = cls.__new__(cls)
        made._keep(memory, allocation or Allocation(memory), stream)
        return made

    def _keep(self, memory: np.ndarray, allocation: Allocation, stream: Any) -> None:
        check_stream(stream)
        self.memory, self.stream, self.allocation = memory, stream, allocation
        self.shape, self.strides, self.dtype = memory.shape, memory.strides, memory.dtype
        self.ndim, self.size, self.nbytes = memory.ndim, memory.size, memory.nbytes

    @property
    def alloc_size(self) -> int:
        """Return the bytes from the first element to the end of the last element."""
        if not self.size:
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        return sum((size - 1) * abs(stride) for size, stride in steps) + self.dtype.itemsize

    @property
    def flags(self) -> dict[str, bool]:
        """Return the contiguity, under the names of `numpy.ndarray.flags`."""
        return {"C_CONTIGUOUS": self.is_c_contiguous(), "F_CONTIGUOUS": self.is_f_contiguous()}

    def is_c_contiguous(self) -> bool:
        """Return whether the elements lie in C order, without gaps."""
        return self.memory.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        """Return whether the elements lie in Fortran order, without gaps."""
        return self.memory.flags.f_contiguous

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Return where the elements lie in simulated memory, which `cuda.as_cuda_array` understands."""
        return interface_of(self.memory, self.stream)

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """Return the address of the first element in simulated memory."""
        return ctypes.c_void_p(self.memory.ctypes.data if self.size else 0)

    @property
    def gpu_data(self) -> "Pointer":
        """Return the address of the first element, with the number of bytes from there on."""
        return Pointer(self.device_ctypes_pointer.value or 0, self.alloc_size)

    @property
    def _numba_type_(self) -> Any:
        """Return the type that `numba.typeof` reports."""
        from normlab.run.numba_host import type_of

        return type_of(self.memory)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, which says whether the attribute needs a real GPU or is unknown."""
        if name in ("__dlpack__", "get_ipc_handle"):
            raise AttributeError(f"{name}: an array of normlab run is in no GPU's memory, so it has no address there")
        raise AttributeError(f"a device array of normlab run has no attribute {name!r}")

    def __len__(self) -> int:
        """Return the extent of the first axis."""
        return len(self.memory)

    def __repr__(self) -> str:
        """Return a text without the elements, as Numba's arrays do."""
        return f"<normlab.run DeviceArray of shape {self.shape}, {self.dtype}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return a copy in host memory."""
        if copy is False:
            raise ValueError("`copy=False` is not supported. A copy is always created.")
        return self.copy_to_host().astype(dtype or self.dtype, copy=False)

    # --- copies ------------------------------------------------------------------------------------------------------

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """Copy into `ary`, or a new host array, and return it. The copy is complete on return, even with a stream."""
        check_stream(stream)
        if any(stride < 0 for stride in self.strides):
            raise NotImplementedError(f"D->H copy not implemented for negative strides: {self.strides}")
        if ary is None:
            return self.memory.copy(order="K")
        check_compatible(self, ary)
        ary[...] = self.memory.reshape(ary.shape)
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy a host or device array of the same shape and dtype here."""
        check_stream(stream)
        source = ary.memory if isinstance(ary, DeviceArray) else np.asarray(ary)
        if not source.size:
            return
        for array in (self.memory, source) if isinstance(ary, DeviceArray) else (self.memory,):
            check_contiguous(array)
        if self.dtype != source.dtype:
            raise TypeError(f"incompatible dtype: {self.dtype} vs. {source.dtype}")
        core, source_core = core_of(self.memory), core_of(source)  # Numba copies these: it never repeats an element
        ours, theirs = core.squeeze(), source_core.squeeze()
        if ours.shape != theirs.shape:
            raise ValueError(f"incompatible shape: {core.shape} vs. {source_core.shape}")
        if isinstance(ary, DeviceArray) and ours.strides != theirs.strides:
            raise ValueError(f"incompatible strides: {self.strides} vs. {source.strides}")
        ours[...] = theirs

    # --- views -------------------------------------------------------------------------------------------------------

    def _view(self, memory: np.ndarray, stream: Any = 0) -> "DeviceArray":
        return DeviceArray.of(memory, self.allocation, stream or self.stream)

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """Return an element as a NumPy scalar, copied to the host; a slice or a record as a view on the device."""
        parts = self._parts(item)
        found = self.memory[item]
        if isinstance(found, np.void):  # one record, of which NumPy gives a copy; with `...` it gives a view
            found = self.memory[(*parts, ...)]
        if isinstance(found, np.ndarray) and (found.ndim or found.dtype.names):
            return self._view(found, stream)
        return found[()]

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """Assign a scalar, host array or device array to an element or a slice."""
        source = value.memory if isinstance(value, DeviceArray) else np.asarray(value)
        parts = self._parts(key)
        if isinstance(value, np.ndarray) and not isinstance(value, HostMappedArray):
            check_contiguous(value)
        if not isinstance(key, str):
            # With `...` even an element is an array, of no axes, whose number of axes can be asked for.
            target = self.memory[parts if ... in parts else (*parts, ...)]
            if source.ndim > target.ndim:
                raise ValueError(f"Can't assign {source.ndim}-D array to {target.ndim}-D self")
        self.memory[key] = source

    def _parts(self, key: Any) -> tuple:
        """Return a key's parts; raise TypeError or NotImplementedError for a key that Numba's arrays do not take."""
        parts = key if isinstance(key, tuple) else (key,)
        if isinstance(key, str):
            if self.ndim or not self.dtype.names:
                raise TypeError(f"a field ({key!r}) comes from one record of a device array, not from a whole array")
        elif not all(_is_basic(part) for part in parts):
            raise NotImplementedError(f"a device array is indexed by ints, slices and `...`, not by {key!r}")
        return parts

    __getitem__ = getitem
    __setitem__ = setitem

    def bind(self, stream: Any = 0) -> "DeviceArray":
        """Return the same array with another default stream."""
        return DeviceArray.of(self.memory, self.allocation, stream)

    @property
    def T(self) -> "DeviceArray":  # noqa: N802 - the name that arrays have it under
        """Return the transpose, as a copy."""
        return self.transpose()

    def transpose(self, axes: Any = None) -> "DeviceArray":
        """Return the transpose of a matrix, as a copy, as Numba does."""
        if axes and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            raise NotImplementedError("transposing a non-2D DeviceNDArray isn't supported")
        if axes is not None and set(axes) != {0, 1}:
            raise ValueError(f"invalid axes list {axes!r}")
        return DeviceArray.of(self.memory.T.copy(order="C"), stream=self.stream)

    def reshape(self, *newshape: Any, order: str = "C") -> "DeviceArray":
        """Return a view of another shape. Raise NotImplementedError if that needs a copy."""
        shape = newshape[0] if len(newshape) == 1 and isinstance(newshape[0], (tuple, list)) else newshape
        return self._without_copy(self.memory.reshape(shape, order=order))  # type: ignore[call-overload]

    def ravel(self, order: str = "C", stream: Any = 0) -> "DeviceArray":
        """Return a flat view. Raise NotImplementedError if that needs a copy, as Numba does for any gap."""
        if not (self.is_c_contiguous() or self.is_f_contiguous()):
            raise NotImplementedError("operation requires copying")
        return self._without_copy(self.memory.reshape(-1, order=order), stream)  # type: ignore[call-overload]

    def _without_copy(self, memory: np.ndarray, stream: Any = 0) -> "DeviceArray":
        if self.size and not np.may_share_memory(memory, self.memory):
            raise NotImplementedError("operation requires copying")
        return self._view(memory, stream)

    def squeeze(self, axis: Any = None, stream: Any = 0) -> "DeviceArray":
        """Return a view without axes of extent 1."""
        return self._view(self.memory.squeeze(axis), stream)

    def view(self, dtype: Any) -> "DeviceArray":
        """Return the same bytes as elements of another dtype."""
        if np.dtype(dtype).itemsize != self.dtype.itemsize and not self.is_c_contiguous():
            raise ValueError("To change to a dtype of a different size, the array must be C-contiguous")
        return self._view(self.memory.view(dtype))

    def split(self, section: int, stream: Any = 0) -> Iterator["DeviceArray"]:
        """Yield views of `section` elements each; the last view may be shorter."""
        if self.ndim != 1:
            raise ValueError("only support 1d array")
        if self.strides[0] != self.dtype.itemsize:
            raise ValueError("only support unit stride")
        for index in range(math.ceil(self.size / section)):
            yield self._view(self.memory[index * section : (index + 1) * section], stream)


def _is_basic(part: Any) -> bool:
    whole = hasattr(part, "__index__") and not isinstance(part, bool) and not np.ndim(part)
    return whole or part is Ellipsis or isinstance(part, slice)


class HostMappedArray(np.ndarray):
    """Memory that host and device share: `cuda.mapped_array` and `cuda.managed_array`."""

    __cuda_ndarray__ = True
    __cuda_memory__ = True
    stream: Any = 0
    allocation: Allocation

    @classmethod
    def of(cls, memory: np.ndarray, stream: Any = 0) -> "HostMappedArray":
        """Return `memory` as an array that is found by its address, too."""
        array = memory.view(cls)
        array.allocation, array.stream = Allocation(memory, counted=False), stream
        return array

    def __array_finalize__(self, obj: Any) -> None:
        """Keep the allocation and the stream of the array that this one is a view of."""
        if isinstance(obj, HostMappedArray):
            self.__dict__.update(obj.__dict__)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Return where the elements lie in simulated memory, which `cuda.as_cuda_array` understands."""
        return interface_of(self, self.stream)

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """Return the address of the first element, which host and device share."""
        return ctypes.c_void_p(self.ctypes.data if self.size else 0)

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """Copy into `ary`, or a new host array, and return it."""
        return DeviceArray.of(np.asarray(self)).copy_to_host(ary)

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy a host or device array of the same shape and dtype here."""
        check_stream(stream)
        DeviceArray.of(np.asarray(self)).copy_to_device(ary)


def core_of(array: np.ndarray) -> np.ndarray:
    """Return an array without the axes along which one element repeats."""
    if not array.size:
        return array
    return array[(*(0 if stride == 0 else slice(None) for stride in array.strides), ...)]


def check_contiguous(array: np.ndarray) -> None:
    """Raise ValueError, as Numba does, unless an array can be copied in one piece; broadcast axes do not count."""
    core = core_of(array)
    if not (core.flags.c_contiguous or core.flags.f_contiguous):
        raise ValueError(CONTIGUOUS_NEEDED)


def check_compatible(device: DeviceArray, host: np.ndarray) -> None:
    """Raise TypeError or ValueError unless `host` has the dtype, shape and strides of `device`."""
    ours, theirs = device.memory.squeeze(), host.squeeze()
    if device.dtype != host.dtype:
        raise TypeError(f"incompatible dtype: {device.dtype} vs. {host.dtype}")
    if ours.shape != theirs.shape:
        raise ValueError(f"incompatible shape: {device.shape} vs. {host.shape}")
    if device.size and ours.strides != theirs.strides:
        raise ValueError(f"incompatible strides: {device.strides} vs. {host.strides}")
