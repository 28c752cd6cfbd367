"""Define indices of threads and blocks, and a thread: the state that it keeps while it is stopped."""

from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from greenlet import greenlet  # type: ignore[import-untyped]

from normlab.sim.protocols import Block, Warp

WARP_SIZE = 32


class Dim3:
    """Three ints, x fastest: an index or an extent."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x: int, y: int, z: int):
        """Hold x, y and z."""
        self.x, self.y, self.z = x, y, z

    def __iter__(self) -> Iterator[int]:
        """Walk through x, y, z."""
        return iter((self.x, self.y, self.z))

    def __repr__(self) -> str:
        """Print as CUDA programmers write it."""
        return f"({self.x}, {self.y}, {self.z})"


class Indices(Sequence[Dim3]):
    """Every index below an extent in linear order, each made when it is asked for."""

    def __init__(self, extent: Dim3):
        """Have `extent` along x, y and z."""
        self._extent = extent

    def __len__(self) -> int:
        """Return the number of indices."""
        return self._extent.x * self._extent.y * self._extent.z

    def __getitem__(self, key: Any) -> Any:
        """Return the index at a position, or a list of indices for a slice."""
        columns, rows, layers = self._extent
        if isinstance(key, slice):  # nearly always all threads of a block: a loop is faster than divmod for each
            return [Dim3(x, y, z) for z in range(layers) for y in range(rows) for x in range(columns)][key]
        # Through `range`, which checks the bounds and takes a negative index from the end.
        rest, x = divmod(range(len(self))[key], columns)
        z, y = divmod(rest, rows)
        return Dim3(x, y, z)


class Thread:
    """One CUDA thread, and the `fiber` that it runs on until it returns.

    While it is stopped, `operation` names what it waits at, `mask` the lanes of a warp operation, and `given` what the
    thread brought. The warp, block, cluster or grid that resolves the operation stores the answer in `result`.
    """

    __slots__ = (
        *("arrival", "block", "copies", "fiber", "given", "index", "lane", "mask", "operation", "polled", "result"),
        *("seen", "spins", "stored_remotely", "updates", "warp"),
    )

    def __init__(self, fiber: greenlet, index: Dim3, lane: int, warp: Warp, block: Block):
        """Prepare to run on `fiber`."""
        self.fiber: greenlet | None = fiber
        self.index, self.lane, self.warp, self.block = index, lane, warp, block
        self.operation: str | None = None
        self.mask = 0
        self.given: Any = None
        self.result: Any = None
        # A thread runs until it waits, and in a spin loop it never does. So the scheduler counts two kinds of atomic
        # operations, and lets other threads run after some of either kind (scheduler.py).
        self.polled: dict[Any, Any] = {}  # address → the value that an atomic there found and left
        self.spins = 0  # atomic operations in a row that left memory as it was
        self.updates = 0  # atomic operations that changed memory
        self.copies: Any = None  # asynchronous copies under way (asynchronous.py)
        self.arrival: int | None = None  # how often the cluster's barrier had been passed when the thread arrived there
        self.stored_remotely = False  # whether it has stored in another block since its last cluster_arrive
        self.seen: Any = None  # whatever the launch's observer keeps for this thread

    @property
    def frame(self) -> FrameType | None:
        """Return the frame in which the thread has stopped; None if it has not begun or has returned."""
        return None if self.fiber is None else self.fiber.gr_frame

    def throw(self, error: Exception) -> None:
        """Raise `error` where the thread has stopped."""
        assert self.fiber is not None, "only a thread that has not returned stands somewhere"
        self.fiber.throw(error)

    def go_on(self) -> None:
        """Let the thread run when its warp runs again."""
        self.operation = None
        self.warp.ready.append(self)

    @property
    def name(self) -> str:
        """Return the thread's block and thread index as errors print them."""
        return f"block {self.block.index}, thread {self.index}"
