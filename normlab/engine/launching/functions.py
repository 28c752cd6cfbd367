"""Kernels on a GPU: compiled once for the kinds of their arguments, or taken from the disk, and loaded on a device."""

from threading import RLock
from typing import Any

from normlab.engine.compile import cubins
from normlab.engine.device.dependent import NEEDED, begins_early
from normlab.engine.device.grid import meets_all
from normlab.engine.launching.driver import MAX_DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTER_SIZE, Driver

PORTABLE_CLUSTER = 8  # blocks; more exist on some GPUs, for kernels that have asked for them
CLUSTER_CAPABILITY = (9, 0)

_lock = RLock()
_functions: dict[tuple, "Function"] = {}


class Function:
    """A kernel, loaded on a device.

    Attributes:
        handle: the driver's, which belongs to the device's primary context.
        name: for messages.
        early: whether its launches begin before the kernel ahead has ended (`engine.dependent`).
        cooperative: whether all blocks of its launches are on the GPU at once (`engine.grid`).
    """

    def __init__(self, driver: Driver, kernel: Any, kinds: tuple, device: int):
        self.driver = driver
        self.device = device
        self.name = kernel.py_func.__name__
        self.capability = driver.compute_capability(device)
        self.early = self.capability >= NEEDED and begins_early(kernel)
        self.cooperative = meets_all(kernel)
        entry, image = cubins.cubin(kernel, kinds, self.capability)
        self.handle = driver.load(image, entry, device)
        self._granted = 0  # beyond 48 KiB a block has to ask, but that is with the static shared memory, unknown here

    def is_current(self) -> bool:
        """Would a launch in this thread now find the function's context?"""
        return self.driver.current_context() == self.driver.context(self.device)

    def allow(self, shared_bytes: int, cluster: int) -> None:
        """Ask the driver for what a launch needs beyond the ordinary; call it before every new configuration.

        Raises:
            ValueError: clusters on a GPU that has none.
            RuntimeError: more than the GPU has.
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
    """A kernel for the kinds of its arguments (see `signatures.kind_of`) on a device; made once a process."""
    key = kernel, kinds, device
    found = _functions.get(key)
    if found is None:
        with _lock:  # Numba's compiler takes one thread at a time, and who waits finds the other's result
            found = _functions.get(key)
            if found is None:
                found = _functions[key] = Function(driver, kernel, kinds, device)
    return found
