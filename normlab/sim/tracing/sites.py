"""Define sites, the instructions of a kernel that access memory, and arrays that log every access."""

from typing import Any, NamedTuple

import numpy as np

from normlab.sim.language.source import Line
from normlab.sim.machine.observed import ObservedArray, ObservedRecord, elements
from normlab.sim.tracing.heat import Heat

RANK_SPACING = 1 << 24  # bytes between the shared memories of a cluster's blocks, as PTX's `mapa` maps them
NOT_LOADED = (np.ndarray, np.void)  # a view and a record: indexing has not loaded an element yet


class Site(NamedTuple):
    """An instruction, as it was reached by its calls, that accesses `size` bytes of an array."""

    line: Line
    operation: str
    size: int
    heat: Heat
    origin: int  # the array's address
    allocation: range  # of global memory, that it lies in
    parts: int  # 2 for a complex number, whose parts the compiler loads and stores apart; the next site is the same


class Sites(dict[int | tuple[int, ...], int]):
    """The numbers of the sites of one operation on an array.

    The keys are quick to make: the instruction in the kernel, or (code, instruction, *calls outwards) in a function.
    """

    def __init__(self, operation: str, size: int, shared: bool):
        """Know no site yet."""
        super().__init__()
        self.operation, self.size, self.shared = operation, size, shared


class TracedArray(ObservedArray):
    """An array that logs every access in its recorder."""

    __slots__ = ("loads", "note", "stores")

    def __init__(self, *arguments: Any):
        """Find the sites of the array."""
        super().__init__(*arguments)
        # Looked up once: a kernel accesses an array's elements far more often than it makes views of it.
        self.note = self.observer.note  # type: ignore[attr-defined]
        self.loads = self.observer.sites(self, "ld", self.itemsize)  # type: ignore[attr-defined]
        self.stores = self.observer.sites(self, "st", self.itemsize)  # type: ignore[attr-defined]

    def __getitem__(self, key: Any) -> Any:
        """Return an element and log its load; a view loads nothing."""
        # NumPy's load first, because it raises IndexError outside of the array, and `note` expects an index inside.
        value = self.raw[key]
        if isinstance(value, NOT_LOADED):
            return self.observer.value_of(self, key, value)
        self.note(self, key, self.loads)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store an element, or as many as a slice has; a record field by field."""
        if isinstance(value, ObservedRecord):
            for name in self.raw.dtype.names or ():
                self.field(name)[key] = value[name]
            return
        self.raw[key] = elements(value) if isinstance(value, ObservedArray) else value
        self.note(self, key, self.stores)


def with_second_parts(table: np.ndarray, sites: list[Site]) -> np.ndarray:
    """Return the accesses, and for each complex number a second one, of its imaginary part."""
    second = table[np.array([site.parts == 2 for site in sites])[table[:, 0]]]
    if not len(second):
        return table
    second[:, 0] += 1
    # The imaginary part follows the real part in memory; `size` is that of one part.
    second[:, 3] += np.array([site.size for site in sites])[second[:, 0]]
    return np.concatenate([table, second])
