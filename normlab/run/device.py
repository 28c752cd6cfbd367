"""Imitate the GPU itself: device, context, streams and events, with the numbers of an NVIDIA H200 (SXM).

Every launch and copy ends before its call returns, so a stream is always empty and an event always reached. An
attribute that is missing here raises an AttributeError that names it.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from normlab.run.memory import MEMORY, Allocation, check_stream
from normlab.run.numba_host import driver
from normlab.sim.machine import cooperative

# The names of CUDA's device attributes → the values that the driver reports for an H200.
ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 * 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 * 1024,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": cooperative.SHARED,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": cooperative.RESERVED,
    "TOTAL_CONSTANT_MEMORY": 64 * 1024,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_THREADS_PER_MULTI_PROCESSOR": cooperative.THREADS,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": cooperative.BLOCKS,
    "WARP_SIZE": cooperative.WARP_SIZE,
    "MULTIPROCESSOR_COUNT": cooperative.MULTIPROCESSORS,
    "CLOCK_RATE": 1_980_000,  # kHz
    "MEMORY_CLOCK_RATE": 3_201_000,  # kHz
    "GLOBAL_MEMORY_BUS_WIDTH": 6016,  # bits
    "L2_CACHE_SIZE": 60 * 2**20,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "ASYNC_ENGINE_COUNT": 3,
    "COMPUTE_MODE": 0,
    "CONCURRENT_KERNELS": 1,
    "COOPERATIVE_LAUNCH": 1,
    "CAN_MAP_HOST_MEMORY": 1,
    "ECC_ENABLED": 1,
    "INTEGRATED": 0,
    "KERNEL_EXEC_TIMEOUT": 0,
    "MANAGED_MEMORY": 1,
    "PCI_BUS_ID": 0,
    "PCI_DEVICE_ID": 0,
    "PCI_DOMAIN_ID": 0,
    "TCC_DRIVER": 0,
    "UNIFIED_ADDRESSING": 1,
}


class Device:
    """The one simulated GPU. It can be used as a context manager, like `cuda.gpus[0]`."""

    id = 0
    name = "NVIDIA H200"
    compute_capability = (9, 0)
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    supports_float16 = True
    supports_bfloat16 = True
    supports_fp8 = False  # the hardware supports it, but the simulator does not

    def __getattr__(self, name: str) -> int:
        """Return a device attribute under its name in CUDA's driver."""
        if name in ATTRIBUTES:
            return ATTRIBUTES[name]
        raise AttributeError(f"normlab run's device has no attribute {name!r}")

    def __repr__(self) -> str:
        """Return Numba's text for a device, and say that this one is simulated."""
        return f"<CUDA device 0 '{self.name}', simulated by normlab>"

    def __enter__(self) -> None:
        """Do nothing: this device is always selected."""

    def __exit__(self, *error: object) -> None:
        """Do nothing: the device stays selected."""

    def get_primary_context(self) -> "Context":
        """Return the only context."""
        return CONTEXT

    def get_device_identity(self) -> dict[str, int]:
        """Return where the device would be on the PCI bus."""
        return {f"pci_{part}_id": ATTRIBUTES[f"PCI_{part.upper()}_ID"] for part in ("domain", "bus", "device")}

    def reset(self) -> None:
        """Do nothing: the program's arrays own the device's memory."""


class MemoryInfo(NamedTuple):
    """Bytes of device memory."""

    free: int
    total: int


class Stream:
    """A queue of work, always empty, because every launch and copy ends before its call returns."""

    _made = 0

    def __init__(self, handle: int | None = None, external: bool = False):
        """Make a new stream, or the stream with this handle; `external` if another library made it."""
        if handle is None:
            Stream._made += 1
            handle = 0x1000 + Stream._made  # unlike the handles 0, 1 and 2 of the default streams
        self.handle, self.external = handle, external

    def __int__(self) -> int:
        """Return the handle."""
        return self.handle

    def __bool__(self) -> bool:
        """Return True, as every object of Numba's `Stream` does."""
        return True

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version and the handle, by which libraries recognise a stream."""
        return 0, self.handle

    def __repr__(self) -> str:
        """Print as Numba does."""
        names = {0: "Default CUDA stream", 1: "Legacy default CUDA stream", 2: "Per-thread default CUDA stream"}
        return f"<{names.get(self.handle, f'CUDA stream {self.handle}')}>"

    def synchronize(self) -> None:
        """Return at once: the stream is empty."""

    @contextmanager
    def auto_synchronize(self) -> Iterator["Stream"]:
        """Synchronize at the end of a `with` block."""
        yield self

    def add_callback(self, callback: Callable[[Any, int, Any], None], arg: Any = None) -> None:
        """Call `callback(stream, 0, arg)` now, because all earlier work is done."""
        callback(self, 0, arg)

    def async_done(self) -> "asyncio.Future[Stream]":
        """Return an awaitable that is done."""
        future = asyncio.get_running_loop().create_future()
        future.set_result(self)
        return future


class Event:
    """A point in time by the host's clock. Differences are times of the simulation, not times of a GPU."""

    def __init__(self, timing: bool = True):
        """Make an event that has not been recorded yet."""
        self.timing = timing
        self._time: float | None = None

    def record(self, stream: Any = 0) -> None:
        """Record the host's time."""
        check_stream(stream)
        self._time = time.perf_counter()

    def query(self) -> bool:
        """Return True, because all earlier work is done."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def wait(self, stream: Any = 0) -> None:
        """Return at once."""
        check_stream(stream)

    def elapsed_time(self, evtend: "Event") -> float:
        """Return the milliseconds that the simulation took from here to `evtend`."""
        if self._time is None or evtend._time is None:
            raise RuntimeError("elapsed_time needs two events that were recorded")
        if not (self.timing and evtend.timing):
            raise RuntimeError("elapsed_time needs two events made with timing=True")
        return (evtend._time - self._time) * 1e3


class Context:
    """The context that `cuda.current_context()` returns.

    Raw memory and the queue of deallocations are Numba's own memory manager, with the driver of `driver.py` below it.
    """

    def __init__(self, device: Device):
        """Make the context of `device`."""
        self.device = device
        self.memory_manager = driver.NumbaCUDAMemoryManager(context=self)
        self.memory_manager.deallocations.memory_capacity = MEMORY
        Allocation.freed = self._count_as_pending

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, naming the missing attribute."""
        raise AttributeError(f"normlab run's context has no attribute {name!r}")

    def synchronize(self) -> None:
        """Return at once, because all work is already done."""

    def get_memory_info(self) -> MemoryInfo:
        """Return free and total bytes; only the program's device arrays count as in use."""
        return MemoryInfo(MEMORY - Allocation.in_use, MEMORY)

    def reset(self) -> None:
        """Free the raw memory and clear the queue; the program's arrays own their memory."""
        self.memory_manager.reset()

    def push(self) -> None:
        """Do nothing: there is one context."""

    pop = prepare_for_use = push

    # --- raw memory ---------------------------------------------------------------------------------------------------

    @property
    def deallocations(self) -> Any:
        """Return the queue of freed arrays. A GPU frees them later; here the memory is already free."""
        return self.memory_manager.deallocations

    def _count_as_pending(self, size: int) -> None:
        self.deallocations.add_item(_free_at_once, None, size)

    def memalloc(self, bytesize: int) -> Any:
        """Return a pointer to new memory of the device."""
        return self.memory_manager.memalloc(bytesize)

    def memhostalloc(self, bytesize: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """Return a pointer to new memory of the host."""
        return self.memory_manager.memhostalloc(bytesize, mapped, portable, wc)

    def memallocmanaged(self, bytesize: int, attach_global: bool = True) -> Any:
        """Return a pointer to new memory of host and device."""
        return self.memory_manager.memallocmanaged(bytesize, attach_global)

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool = False) -> Any:
        """Return a pointer to the host's memory at an address, which stays where it is."""
        return self.memory_manager.mempin(owner, pointer, size, mapped)

    def defer_cleanup(self) -> Any:
        """Return a context manager in which nothing leaves the queue of freed arrays."""
        return self.memory_manager.defer_cleanup()

    # --- streams ------------------------------------------------------------------------------------------------------

    def create_stream(self) -> Stream:
        """Return a new stream."""
        return Stream()

    def create_external_stream(self, ptr: int) -> Stream:
        """Return a stream that another library made."""
        if not isinstance(ptr, int):
            raise TypeError("ptr for external stream must be an int")
        return Stream(ptr, external=True)

    def get_default_stream(self) -> Stream:
        """Return the stream that launches without a stream go to."""
        return Stream(0)

    def get_legacy_default_stream(self) -> Stream:
        """Return the default stream that waits for all others."""
        return Stream(1)

    def get_per_thread_default_stream(self) -> Stream:
        """Return the default stream of this thread."""
        return Stream(2)

    def create_event(self, timing: bool = True) -> Event:
        """Return a new event."""
        return Event(timing)


def _free_at_once(handle: None) -> None:
    """Do nothing when an array leaves the queue: Python has freed it."""


class DeviceList(list[Device]):
    """The list `cuda.gpus`, with its one device."""

    @property
    def current(self) -> Device:
        """Return the selected device."""
        return self[0]

    @property
    def lst(self) -> "DeviceList":
        """Return the list itself."""
        return self


DEVICE = Device()
CONTEXT = Context(DEVICE)
GPUS = DeviceList([DEVICE])


def current_context(devnum: int | None = None) -> Context:
    """Return the context of device 0; raises IndexError for any other."""
    if devnum not in (None, 0):
        raise IndexError(f"normlab run simulates one GPU, number 0; there is no number {devnum}")
    return CONTEXT


def select_device(device_id: int) -> Device:
    """Return device 0; raises IndexError for any other."""
    return current_context(int(device_id)).device


def detect() -> bool:
    """Print the device in the format of Numba's `cuda.detect`; return True."""
    print("Found 1 CUDA devices")
    print(f"id 0    {DEVICE.name:>20} {'[SUPPORTED]':>40}")
    for what, value in (("Compute Capability", "9.0"), ("UUID", DEVICE.uuid), ("Simulated by", "normlab run")):
        print(f"{what:>40}: {value}")
    print("Summary:\n\t1/1 devices are supported")
    return True


@contextmanager
def nothing() -> Iterator[None]:
    """Do nothing: the replacement of `cuda.defer_cleanup` and `cuda.profiling`."""
    yield
