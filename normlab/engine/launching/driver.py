"""Call the CUDA driver through ctypes: the calls that the engine needs.

ctypes is used because its arguments can be prepared once. The same call of `cuLaunchKernelEx` through cuda-bindings
costs more, because cuda-bindings converts eleven Python objects to C each time. `driver()` returns the process's
driver.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Numbers from cuda.h; tests/engine/test_driver.py compares them with the numbers in cuda-bindings.
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
    """CUlaunchAttribute. Its value is a cluster's size, or 1 to switch the attribute on."""

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
    """Raised when the driver refuses a call; `code` is the driver's CUresult."""

    def __init__(self, what: str, code: int, name: str, text: str):
        super().__init__(f"the driver could not {what}: {name} ({text})")
        self.code = code


class Driver:
    """The driver's calls, on a library that implements them: libcuda, or a test's replacement."""

    def __init__(self, library: Any):
        self.library = library
        self.launch = library.cuLaunchKernelEx
        self._contexts: dict[int, int] = {}
        self.check("start", library.cuInit(0))
        self.devices = self._number("count the GPUs", library.cuDeviceGetCount)

    def check(self, what: str, code: int) -> None:
        """Raise DriverError, with a message that names the failed action, unless a call returned 0."""
        if code:
            texts = [ctypes.c_char_p(), ctypes.c_char_p()]
            self.library.cuGetErrorName(code, ctypes.byref(texts[0]))
            self.library.cuGetErrorString(code, ctypes.byref(texts[1]))
            name, text = ((value.value or b"unknown error").decode() for value in texts)
            raise DriverError(what, code, name, text)

    def _number(self, what: str, call: Any, *args: Any) -> int:
        """Return the int that a call writes to its first argument."""
        number = ctypes.c_int()
        self.check(what, call(ctypes.byref(number), *args))
        return number.value

    def _handle(self, what: str, call: Any, *args: Any) -> int:
        """Return the pointer that a call writes to its first argument."""
        handle = ctypes.c_void_p()
        self.check(what, call(ctypes.byref(handle), *args))
        return handle.value or 0

    def compute_capability(self, device: int) -> tuple[int, int]:
        """Return a GPU's compute capability, such as (9, 0)."""
        major, minor = (
            self._number("tell the compute capability", self.library.cuDeviceGetAttribute, attribute, device)
            for attribute in COMPUTE_CAPABILITY
        )
        return major, minor

    def multiprocessors(self, device: int) -> int:
        """Return how many multiprocessors a GPU has."""
        call = self.library.cuDeviceGetAttribute
        return self._number("count the multiprocessors", call, MULTIPROCESSORS, device)

    def device_of(self, pointer: int) -> int:
        """Return the number of the GPU whose memory an address belongs to."""
        call = self.library.cuPointerGetAttribute
        return self._number(f"tell whose the address {pointer:#x} is", call, DEVICE_ORDINAL, ctypes.c_void_p(pointer))

    def current_context(self) -> int:
        """Return the handle of the context current in this thread, or 0 if there is none."""
        return self._handle("tell the current context", self.library.cuCtxGetCurrent)

    def context(self, device: int) -> int:
        """Return a device's primary context, which torch, CuPy, Numba and the CUDA runtime share. Never released."""
        if device not in self._contexts:
            what = f"retain the primary context of GPU {device}"
            self._contexts[device] = self._handle(what, self.library.cuDevicePrimaryCtxRetain, device)
        return self._contexts[device]

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """Make a device's primary context current in this thread, and restore the previous context at the end."""
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
        """Load a cubin on a device; return the handle of its function.

        Loading allocates memory. A thread that captures a CUDA graph may allocate only in the relaxed capture mode, so
        this function switches to that mode. The whole image is loaded now, so that no launch loads anything later.
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
        """Queue work on a GPU's stream that sets `size` bytes, from an address on, to 0."""
        what = f"clear {size} bytes on GPU {device}"
        call = self.library.cuMemsetD8Async
        with self.current(device):
            self.check(
                what, call(ctypes.c_uint64(pointer), ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream))
            )

    def set_attribute(self, what: str, function: int, attribute: int, value: int) -> None:
        """Set a function's attribute, one of CUfunction_attribute."""
        self.check(what, self.library.cuFuncSetAttribute(ctypes.c_void_p(function), attribute, value))

    def resident_blocks(self, function: int, threads: int, shared_bytes: int) -> int:
        """Return how many blocks of a function one multiprocessor holds at a time."""
        call = self.library.cuOccupancyMaxActiveBlocksPerMultiprocessor
        what = "tell how many blocks a multiprocessor holds"
        return self._number(what, call, ctypes.c_void_p(function), threads, ctypes.c_size_t(shared_bytes))

    def resident_clusters(self, function: int, config: LaunchConfig) -> int:
        """Return how many clusters of a function the current GPU holds at a time.

        Only the driver knows this number, because a cluster must fit into one group of multiprocessors.
        """
        call = self.library.cuOccupancyMaxActiveClusters
        what = "tell how many clusters the GPU holds"
        return self._number(what, call, ctypes.c_void_p(function), ctypes.byref(config))


@cache
def driver() -> Driver:
    """Return the driver of this process.

    Raises:
        RuntimeError: the machine has no driver.
    """
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"launching on a GPU needs NVIDIA's driver; none was found here ({error})") from None
    return Driver(library)
