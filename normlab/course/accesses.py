"""Record which thread reads and writes which element, and between which barriers, for the pictures of `pictures`."""

from typing import Any

import numpy as np

from normlab.sim.machine.launch import Launch, Launchable
from normlab.sim.machine.observe import Observer
from normlab.sim.machine.observed import Buffer, ObservedArray, offset_of

MOST = 100_000  # accesses that are recorded; pictures are drawn of small inputs


class Accesses(Observer):
    """Records the accesses of every thread to global and shared memory, in the order in which they happen."""

    def __init__(self) -> None:
        """Begin with no access."""
        super().__init__()
        self.names: dict[tuple[str, str], int] = {}  # space and name of an array → its number
        self.shapes: list[tuple[int, ...]] = []
        self.threads: dict[Any, int] = {}  # thread → its number
        self.phases: dict[Any, int] = {}  # thread → how many of its block's barriers it has passed
        self.events: list[tuple[str, int, int, int, int]] = []  # operation, array, element, thread, phase

    def add(self, buffer: Buffer) -> None:
        """Give an array of global or shared memory its number."""
        if buffer.space != "local" and (buffer.space, buffer.name) not in self.names:
            self.names[buffer.space, buffer.name] = len(self.names)
            self.shapes.append(buffer.array.shape)

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Load an element, and record the access."""
        value = super().read(array, key)
        if not isinstance(value, ObservedArray):  # a slice loads nothing yet
            self._note("read", array, key, 1)
        return value

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Store an element, and record the access."""
        super().write(array, key, value)
        self._note("write", array, key, 1)

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Load neighbouring elements, and record an access for each."""
        values = super().read_vector(array, key, width)
        self._note("read", array, key, width)
        return values

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store neighbouring elements, and record an access for each."""
        super().write_vector(array, key, values)
        self._note("write", array, key, len(values))

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Record a write, and return where the running thread does its atomic operation."""
        self._note("write", array, key, 1)
        return super().atomic(array, key)

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Begin a new phase of the threads that have arrived."""
        for thread in arrived:
            self.phases[thread] = self.phases.get(thread, 0) + 1

    def block_begins(self, block: Any) -> None:
        """Number the threads of a block."""
        for warp in block.warps:
            for thread in warp.threads:
                self.threads[thread] = len(self.threads)

    def _note(self, operation: str, array: ObservedArray, key: Any, width: int) -> None:
        """Append an event for each of `width` neighbouring elements that begin at array[key]."""
        buffer, offset = array.buffer, offset_of(array, key)  # offset in bytes; None for a key that is no element
        if offset is None or buffer.space == "local" or len(self.events) >= MOST:
            return
        # `array` may be a slice of the buffer: elements are numbered in the buffer, so that all slices agree.
        first = (array.address + offset - buffer.address) // array.itemsize
        thread = self.cuda.current
        number = self.names[buffer.space, buffer.name]
        for element in range(first, first + width):
            self.events.append((operation, number, element, self.threads[thread], self.phases.get(thread, 0)))

    def as_dict(self) -> dict[str, Any]:
        """Return what was recorded, in lists and numbers."""
        return {
            "arrays": [
                [space, name, list(shape)] for (space, name), shape in zip(self.names, self.shapes, strict=True)
            ],
            "threads": [[list(thread.block.index), list(thread.index)] for thread in self.threads],
            "events": self.events,
            "stopped": None,
        }


def accesses(kernel: Any) -> Launchable:
    """Return `kernel`, ready to launch; the launch returns its accesses, also if an exception ends it ("stopped")."""

    def start(launch: Launch, arguments: tuple) -> dict[str, Any]:
        recorder, stopped = Accesses(), None
        try:
            launch.run(arguments, recorder)
        except Exception as error:
            stopped = f"{type(error).__name__}: {error}"
        return recorder.as_dict() | {"stopped": stopped}

    return Launchable("accesses", kernel, schedule="forward", cluster=1, start=start)
