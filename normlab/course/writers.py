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

    def __init__(self, address: int):
        """Watch the element at a host address."""
        super().__init__()
        self._address = address
        self.writer: dict[str, Any] | None = None

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Store an element, and record the writing thread."""
        super().write(array, key, value)
        self._note(array, key, 1, sys._getframe(1))

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store neighbouring elements, and record the writing thread."""
        super().write_vector(array, key, values)
        self._note(array, key, len(values), sys._getframe(1))

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Do the atomic operation, and record the writing thread."""
        self._note(array, key, 1, sys._getframe(1))
        return super().atomic(array, key)

    def _note(self, array: ObservedArray, key: Any, elements: int, frame: FrameType) -> None:
        offset = offset_of(array, key)
        if offset is None:
            return
        start = pointer(array.raw) + offset
        if start <= self._address < start + elements * array.itemsize:
            thread, place = self.cuda.current, kernel_frame(frame)
            self.writer = {
                "block": list(thread.block.index),
                "thread": list(thread.index),
                "warp": thread.block.warps.index(thread.warp),
                "lane": thread.lane,
                "file": place.f_code.co_filename,
                "line": place.f_lineno,
            }


def last_writer(kernel: Any, array: np.ndarray, index: tuple[int, ...]) -> Launchable:
    """Return `kernel`, ready to launch; the launch returns the thread that wrote the element last, or None."""
    address = pointer(array) + sum(one * stride for one, stride in zip(index, array.strides, strict=True))

    def start(launch: Launch, arguments: tuple) -> dict[str, Any] | None:
        watch = LastWriter(address)
        launch.run(arguments, watch)
        return watch.writer

    return Launchable("last_writer", kernel, "forward", 1, start)
