"""Count the elements of global memory that the busiest thread touches, to see whether the threads share the work."""

from collections import defaultdict
from typing import Any

from normlab.sim.machine.launch import Launch, Launchable
from normlab.sim.machine.observe import Observer
from normlab.sim.machine.observed import ObservedArray, offset_of, pointer


class Touched(Observer):
    """Records which elements of global memory each thread reads or writes; a repeated access counts once."""

    def __init__(self) -> None:
        """Start without any access."""
        super().__init__()
        self.elements: defaultdict[Any, set[int]] = defaultdict(set)  # thread → host addresses

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Read, and record the reading thread."""
        self._note(array, key, 1)
        return super().read(array, key)

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Store, and record the writing thread."""
        self._note(array, key, 1)
        super().write(array, key, value)

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Read, and record the reading thread."""
        self._note(array, key, width)
        return super().read_vector(array, key, width)

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store, and record the writing thread."""
        self._note(array, key, len(values))
        super().write_vector(array, key, values)

    def _note(self, array: ObservedArray, key: Any, elements: int) -> None:
        offset = offset_of(array, key)
        if array.buffer.space == "global" and offset is not None:
            start = pointer(array.raw) + offset
            self.elements[self.cuda.current].update(start + k * array.itemsize for k in range(elements))


def busiest(kernel: Any) -> Launchable:
    """Return `kernel`, ready to launch; the launch returns the thread that touches most elements, and their number."""

    def start(launch: Launch, arguments: tuple) -> dict[str, Any]:
        watch = Touched()
        launch.run(arguments, watch)
        thread, elements = max(watch.elements.items(), key=lambda item: len(item[1]))
        return {
            "elements": len(elements),
            "block": list(thread.block.index),
            "warp": thread.block.warps.index(thread.warp),
            "lane": thread.lane,
        }

    return Launchable("busiest", kernel, "forward", 1, start)
