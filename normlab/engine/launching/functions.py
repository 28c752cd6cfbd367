"""Load kernels on a device: each is compiled, or read from disk, once for each combination of argument kinds."""

from threading import RLock
from typing import Any

from normlab.engine.compile import cubins
from normlab.engine.compile.lengths import lengths_of
from normlab.engine.device.clusters import CLUSTER_CAPABILITY
from normlab.engine.device.dependent import begins_early
from normlab.engine.device.grid import meets_all
from normlab.engine.launching.driver import MAX_DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTER_SIZE, Driver

PORTABLE_CLUSTER = 8  # blocks; some GPUs allow larger clusters if the kernel's attribute asks for them

_lock = RLock()
_functions: dict[tuple, "Function"] = {}


class Function:
    """A kernel, loaded on a device.

    Attributes:
        handle: the driver's handle, which belongs to the device's primary context.
        name: the kernel's name, for messages.
        lengths: the names of its arguments' lengths.
        early: True if a launch may begin before the previous kernel has ended (`engine.device.dependent`).
        cooperative: True if all blocks of a launch must be on the GPU at once, because the kernel has a barrier of the
            grid (`engine.device.grid`).
    """

    def __init__(self, driver: Driver, kernel: Any, kinds: tuple, device: int):
        self.driver = driver
        self.device = device
        self.name = kernel.py_func.__name__
        self.lengths = lengths_of(kernel, kinds)
        self.capability = driver.compute_capability(device)
        self.early = self.capability >= CLUSTER_CAPABILITY and begins_early(kernel)
        self.cooperative = meets_all(kernel)
        entry, image = cubins.cubin(kernel, kinds, self.capability)
        self.handle = driver.load(image, entry, device)
        # Dynamic shared bytes requested so far. Only a total above 48 KiB needs a request, but the static part of the
        # total is unknown here, so every larger size is requested.
        self._granted = 0

    def is_current(self) -> bool:
        """Return True if the function's context is current in this thread, so that a launch can succeed."""
        return self.driver.current_context() == self.driver.context(self.device)

    def allow(self, shared_bytes: int, cluster: int) -> None:
        """Request the dynamic shared memory and the cluster size that a launch needs; call before a new configuration.

        Raises:
            ValueError: the launch has clusters, but the GPU does not support clusters.
            RuntimeError: the launch asks for more than the GPU has.
        """
        if cluster > 1 and self.capability < CLUSTER_CAPABILITY:
            raise ValueError(
                f"{self.name} asks for clusters of {cluster} blocks, which need compute capability 9.0 or higher; "
                f"GPU {self.device} has {self.capability[0]}.{self.capability[1]}"
            )
        with _lock:
            if shared_bytes > self._granted:
                what = f"give {self.name} {shared_bytes} bytes of dynamic shared memory a block"
                self._set(what, MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
                self._granted = shared_bytes
            if cluster > PORTABLE_CLUSTER:
                self._set(f"give {self.name} clusters of {cluster} blocks", NON_PORTABLE_CLUSTER_SIZE, 1)

    def _set(self, what: str, attribute: int, value: int) -> None:
        with self.driver.current(self.device):
            self.driver.set_attribute(what, self.handle, attribute, value)


def function(driver: Driver, kernel: Any, kinds: tuple, device: int) -> Function:
    """Return a kernel, loaded on a device, for the kinds of its arguments (`signatures.kind_of`); loaded only once."""
    key = kernel, kinds, device
    found = _functions.get(key)
    if found is None:
        with _lock:  # Numba compiles in one thread at a time; a thread that waited finds the first thread's result
            found = _functions.get(key)
            if found is None:
                found = _functions[key] = Function(driver, kernel, kinds, device)
    return found
