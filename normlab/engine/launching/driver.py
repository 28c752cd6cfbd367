"""The CUDA driver, as far as the engine asks it, called through ctypes.

A call of `cuLaunchKernelEx` whose arguments were prepared as ctypes objects costs less than the same call through
cuda-bindings, which turns eleven Python objects into C on the way. `driver()` is the one of this process.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Numbers from cuda.h; tests/engine/test_driver.py compares them with those of cuda-bindings.
COMPUTE_CAPABILITY = (75, 76)  # CUdevice_attribute: major, minor
MULTIPROCESSORS = 16
MAX_DYNAMIC_SHARED_BYTES = 8  # CUfunction_attribute
NON_PORTABLE_CLUSTER_SIZE = 14
COOPERATIVE = 2  # CUlaunchAttributeID
CLUSTER_DIMENSION = 4
PROGRAMMATIC_STREAM_SERIALIZATION = 6
DEVICE_ORDINAL = 9  # CUpointer_attribute
RELAXED = 2  # CUstreamCaptureMode


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; its value: a cluster's size, or 1 for yes."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


class DriverError(RuntimeError):
    """The driver refused; `code` is its CUresult."""

    def __init__(self, what: str, code: int, name: str, text: str):
        super().__init__(f"the driver could not {what}: {name} ({text})")
        self.code = code


class Driver:
    """The calls, on a library that has them: libcuda, or a test's."""

    def __init__(self, library: Any):
        self.library = library
        self.launch = library.cuLaunchKernelEx
        self._contexts: dict[int, int] = {}
        self.check("start", library.cuInit(0))
        self.devices = self._number("count the GPUs", library.cuDeviceGetCount)

    def check(self, what: str, code: int) -> None:
        """Raise DriverError, saying what the driver could not do, unless a call returned 0."""
        if code:
            texts = [ctypes.c_char_p(), ctypes.c_char_p()]
            self.library.cuGetErrorName(code, ctypes.byref(texts[0]))
            self.library.cuGetErrorString(code, ctypes.byref(texts[1]))
            name, text = ((value.value or b"unknown error").decode() for value in texts)
            raise DriverError(what, code, name, text)

    def _number(self, what: str, call: Any, *args: Any) -> int:
        number = ctypes.c_int()
        self.check(what, call(ctypes.byref(number), *args))
        return number.value

    def _handle(self, what: str, call: Any, *args: Any) -> int:
        handle = ctypes.c_void_p()
        self.check(what, call(ctypes.byref(handle), *args))
        return handle.value or 0

    def compute_capability(self, device: int) -> tuple[int, int]:
        """Such as (9, 0)."""
        major, minor = (
            self._number("tell the compute capability", self.library.cuDeviceGetAttribute, attribute, device)
            for attribute in COMPUTE_CAPABILITY
        )
        return major, minor

    def multiprocessors(self, device: int) -> int:
        """How many a GPU has."""
        call = self.library.cuDeviceGetAttribute
        return self._number("count the multiprocessors", call, MULTIPROCESSORS, device)

    def device_of(self, pointer: int) -> int:
        """The number of the GPU whose memory an address belongs to."""
        call = self.library.cuPointerGetAttribute
        return self._number(f"tell whose the address {pointer:#x} is", call, DEVICE_ORDINAL, ctypes.c_void_p(pointer))

    def current_context(self) -> int:
        """The context current in this thread; 0: none."""
        return self._handle("tell the current context", self.library.cuCtxGetCurrent)

    def context(self, device: int) -> int:
        """A device's primary context: that of torch, CuPy, Numba and the CUDA runtime. Never released."""
        if device not in self._contexts:
            what = f"retain the primary context of GPU {device}"
            self._contexts[device] = self._handle(what, self.library.cuDevicePrimaryCtxRetain, device)
        return self._contexts[device]

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """A device's primary context is current in this thread, and what was current before is again at the end."""
        context = self.context(device)
        if self.current_context() == context:
            yield
            return
        self.check(f"make GPU {device} current", self.library.cuCtxPushCurrent_v2(ctypes.c_void_p(context)))
        try:
            yield
        finally:
            self._handle("restore the context", self.library.cuCtxPopCurrent_v2)

    def load(self, image: bytes, entry: str, device: int) -> int:
        """The handle of a cubin's function on a device.

        Loading allocates memory, which a thread that captures a CUDA graph may not, unless it says that the graph need
        not repeat it: hence the relaxed mode. The image is loaded whole, so that no launch has to load any more.
        """
        mode = ctypes.c_int(RELAXED)
        with self.current(device):
            self.library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            try:
                module = self._handle(f"load {entry}", self.library.cuModuleLoadData, image)
                name = entry.encode()
                return self._handle(f"find {entry}", self.library.cuModuleGetFunction, ctypes.c_void_p(module), name)
            finally:
                self.library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def clear(self, pointer: int, size: int, stream: int, device: int) -> None:
        """Queue on a stream of a GPU that so many bytes from an address on become 0."""
        what = f"clear {size} bytes on GPU {device}"
        call = self.library.cuMemsetD8Async
        with self.current(device):
            self.check(
                what, call(ctypes.c_uint64(pointer), ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream))
            )

    def set_attribute(self, what: str, function: int, attribute: int, value: int) -> None:
        """Set a CUfunction_attribute."""
        self.check(what, self.library.cuFuncSetAttribute(ctypes.c_void_p(function), attribute, value))

    def resident_blocks(self, function: int, threads: int, shared_bytes: int) -> int:
        """Blocks of a function that one multiprocessor holds at a time."""
        call = self.library.cuOccupancyMaxActiveBlocksPerMultiprocessor
        what = "tell how many blocks a multiprocessor holds"
        return self._number(what, call, ctypes.c_void_p(function), threads, ctypes.c_size_t(shared_bytes))

    def resident_clusters(self, function: int, config: LaunchConfig) -> int:
        """Clusters of a function that the current GPU holds at a time: its multiprocessors come in groups."""
        call = self.library.cuOccupancyMaxActiveClusters
        what = "tell how many clusters the GPU holds"
        return self._number(what, call, ctypes.c_void_p(function), ctypes.byref(config))


@cache
def driver() -> Driver:
    """The driver of this process.

    Raises:
        RuntimeError: there is none.
    """
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"launching on a GPU needs NVIDIA's driver; none was found here ({error})") from None
    return Driver(library)
