"""The greenlets that CUDA threads run on, from launch to launch.

A new greenlet costs more than many a kernel does in it: Python maps memory for its frames, and gives it back at the
end. So one whose thread has returned is lent to a later thread, of this launch or of another.

Of a fiber from an earlier launch, the C stack below its own frames holds what other calls have left there. NumPy looks
down the stack, ten frames, before it adds large arrays in place of a temporary one, and would die of that. So each
fiber's function is called through C, again and again, until more frames than that are its own.

Called by `scheduler.py`.
"""

import threading
from contextlib import suppress
from contextvars import Context
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

KEPT = 1024  # idle ones between launches: a block's threads
DETOURS = 3  # through C, about six of its frames each


class Fiber(greenlet):
    """Runs one thread after another. Idle, it keeps nothing of the launch alive that it was lent to."""

    grid: Any = None  # whose thread it runs


def body(detours: int = DETOURS) -> None:
    """Run a thread of the grid, then whoever is next; comes back when it is lent again. The function of every fiber."""
    if detours:
        list(map(body, [detours - 1]))  # which does not come back
    while True:
        getcurrent().grid.run_thread().switch()  # in a variable the fiber would keep itself alive


class Fibers:
    """Those of one thread of the process, which a greenlet cannot leave."""

    def __init__(self) -> None:
        self.idle: list[Fiber] = []

    def lend(self, grid: Any, hub: greenlet, context: Context) -> Fiber:
        """Return a fiber for a thread of `grid`; what it raises comes to `hub`."""
        fiber = self.idle.pop() if self.idle else Fiber(body)
        fiber.grid, fiber.parent, fiber.gr_context = grid, hub, context
        return fiber

    def take_back(self, fiber: Fiber) -> None:
        """Lend it again, from the moment on in which it, which is running, runs somebody else."""
        fiber.grid = fiber.gr_context = None
        self.idle.append(fiber)

    def settle(self, hub: greenlet, failed: bool) -> None:
        """After a launch from `hub`, keep what the next one is likely to need.

        Nothing after one that failed, for what was raised may have hit a fiber after it was taken back. Nor where idle
        fibers would keep more than themselves: a hub that may be abandoned, or, as nobody can end them then, all that a
        thread of the process leaves behind.
        """
        here = hub.parent is None and threading.current_thread() is threading.main_thread()
        del self.idle[KEPT if here and not failed else 0 :]


_here = threading.local()


def fibers() -> Fibers:
    """Return those of the calling thread."""
    try:
        return _here.fibers
    except AttributeError:
        _here.fibers = Fibers()
        return _here.fibers


def end(fiber: greenlet) -> None:
    """Unwind a stopped fiber, so that no frame and no reference outlives the launch."""
    while not fiber.dead:  # a `finally` in the kernel may stop at another barrier
        with suppress(Exception):
            fiber.throw(GreenletExit)
