"""The greenlets that CUDA threads run on, from launch to launch.

A new greenlet costs more than many a kernel does in it: Python maps memory for its frames, and gives it back at the
end. So one whose thread has returned is lent to a later thread, of this launch or of another. Called by `scheduler.py`.
"""

import threading
from contextlib import suppress
from contextvars import Context
from typing import Any

from greenlet import GreenletExit, greenlet  # type: ignore[import-untyped]

KEPT = 1024  # idle ones between launches, a block's threads: 20 KB each


class Fibers:
    """Those of one thread of the process, which a greenlet cannot leave."""

    def __init__(self) -> None:
        self.grid: Any = None  # whose threads run; a fiber that is lent keeps no launch alive
        self.idle: list[greenlet] = []

    def lend(self, hub: greenlet, context: Context) -> greenlet:
        """Return a fiber for a thread of the running grid; what it raises comes to `hub`."""
        fiber = self.idle.pop() if self.idle else greenlet(self.body)
        fiber.parent, fiber.gr_context = hub, context
        return fiber

    def body(self) -> None:
        """Run one thread after another; the function of every fiber."""
        while True:
            self.grid.run_thread()
            self.grid.following().switch()

    def trim(self) -> None:
        """Give back what no launch is likely to need."""
        del self.idle[KEPT:]


def end(fiber: greenlet) -> None:
    """Unwind a stopped fiber, so that no frame and no reference outlives the launch."""
    while not fiber.dead:  # a `finally` in the kernel may stop at another barrier
        with suppress(Exception):
            fiber.throw(GreenletExit)


_here = threading.local()


def fibers() -> Fibers:
    """Return those of the calling thread."""
    try:
        return _here.fibers
    except AttributeError:
        _here.fibers = Fibers()
        return _here.fibers
