"""Find the thread that wrote an element last, and the line, to explain a wrong result."""

import sys
from types import FrameType
from typing import Any

import numpy as np

from normlab.sim.machine.launch import Launch, Launchable
from normlab.sim.machine.observe import Observer, kernel_frame
from normlab.sim.machine.observed import ObservedArray, offset_of, pointer


class LastWriter(Observer):
    """Records the thread that wrote one element last."""

    def __init__(self, element: np.ndarray, writer: dict[str, Any] | None):
        """Watch an element, given as a view without axes. writer: the thread of an earlier launch that wrote it."""
        super().__init__()
        self._element, self._address = element, pointer(element)
        self.writer = writer

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Store an element or many by a slice, and record the writing thread."""
        super().write(array, key, value)
        self._note(array, key, 1, sys._getframe(1))

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store neighbouring elements, and record the writing thread."""
        super().write_vector(array, key, values)
        self._note(array, key, len(values), sys._getframe(1))

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Return where to do the atomic operation; record its thread if no other thread has written yet."""
        if self.writer is None:  # `updated` records an operation that changes the element; a failed cas does not
            self._note(array, key, 1, sys._getframe(1))
        return super().atomic(array, key)

    def updated(self, array: ObservedArray, key: Any) -> None:
        """Record the thread whose atomic operation has changed an element."""
        self._note(array, key, 1, sys._getframe(1))

    def _note(self, array: ObservedArray, key: Any, elements: int, frame: FrameType) -> None:
        offset = offset_of(array, key)
        if offset is None:
            wrote = np.shares_memory(np.asarray(array.raw)[key], self._element)
        else:
            start = pointer(array.raw) + offset
            wrote = self._address - elements * array.itemsize < start < self._address + self._element.nbytes
        if wrote:
            thread, place = self.cuda.current, kernel_frame(frame)
            self.writer = {
                "block": list(thread.block.index),
                "thread": list(thread.index),
                "warp": thread.block.warps.index(thread.warp),
                "lane": thread.lane,
                "file": place.f_code.co_filename,
                "line": place.f_lineno,
            }


def last_writer(
    kernel: Any, array: np.ndarray, index: tuple[int, ...], earlier: dict[str, Any] | None = None
) -> Launchable:
    """Return `kernel`, ready to launch; the launch returns the thread that wrote the element last, or None.

    earlier: what an earlier launch has returned.
    """
    element: Any = (*index, ...)

    def start(launch: Launch, arguments: tuple) -> dict[str, Any] | None:
        watch = LastWriter(array[element], earlier)
        launch.run(arguments, watch)
        return watch.writer

    return Launchable("last_writer", kernel, "forward", 1, start)
