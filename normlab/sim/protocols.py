"""Define protocols, for files that use an object but must not import the file that implements it.

A thread points to its warp and its block, a block to its grid, and what a kernel calls points to the launch's `cuda`.
Each of these is implemented in a file that imports the one pointing to it, so the lower file names a protocol here.
"""

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol


class Thread(Protocol):
    """One CUDA thread. Implemented by `machine.threads.Thread`, which says what the attributes mean."""

    index: Any
    lane: int
    # A stopped thread waits at `operation`: a warp operation of the lanes in `mask`, or a barrier. It has brought
    # `given`, and whatever resolves the operation leaves the answer in `result`.
    mask: int
    operation: str | None
    given: Any
    result: Any
    # To find livelocks: an address → the value that an atomic of this thread found there and did not change.
    polled: dict[Any, Any]
    # Asynchronous copies under way; how many barriers the cluster had passed when the thread arrived at its barrier;
    # and whether it has stored into another block since it last arrived, which `cluster_arrive_shared` would not order.
    copies: Any
    arrival: int | None
    stored_remotely: bool
    # The observer keeps here what it wants to know again of this thread.
    seen: Any

    @property
    def warp(self) -> "Warp":
        """The warp that the thread is a lane of."""

    @property
    def block(self) -> "Block":
        """The block that the thread is in."""

    @property
    def frame(self) -> FrameType | None:
        """Where the thread has stopped."""

    @property
    def name(self) -> str:
        """The thread's block and thread index, as errors print them."""

    def throw(self, error: Exception) -> None:
        """Raise `error` where the thread has stopped."""

    def go_on(self) -> None:
        """Run when the warp runs again."""


class Warp(Protocol):
    """The lanes that run together. Implemented by `machine.warp.Warp`."""

    threads: list[Any]  # of Thread, as the lists below
    # Threads that have not returned. The lists below hold those of them that can run, that stand at a warp operation,
    # and that gave way in a spin loop; a thread that runs or waits at a barrier is in none of the three.
    live: list[Any]
    live_mask: int
    ready: list[Any]
    waiting: list[Any]
    spinning: list[Any]

    @property
    def block(self) -> "Block":
        """The block that the warp is in."""


class Block(Protocol):
    """The threads that share memory. Implemented by `machine.block.Block`."""

    index: Any
    cluster: Any
    # The block's shared arrays; begin, end and key of each, so that an address can be traced back to its array; and the
    # bytes of those with a fixed shape, to which a launch adds its dynamic bytes.
    shared: dict[Any, Any]
    shared_spans: list[tuple[int, int, Any]]
    static_bytes: int
    # Threads that have returned count as arrived at every barrier, so a barrier compares with the live ones alone.
    live_count: int
    arrived: list[Any]  # of Thread, as the lists below
    at_team: dict[int, list[Any]]
    at_cluster: list[Any]
    at_grid_sync: list[Any]
    warps: list[Any]  # of Warp

    @property
    def grid(self) -> "Grid":
        """The launch that the block belongs to."""

    @property
    def threads(self) -> list[Any]:
        """All threads, returned ones too, in linear order."""

    @property
    def spinning(self) -> bool:
        """Whether a thread is in a spin loop and may be freed by another block."""


class Grid(Protocol):
    """One launch while it runs. Implemented by `machine.scheduler.Grid`."""

    kernel_name: str
    # The schedule: from a list of blocks, warps or lanes to the order in which they run.
    order: Callable[[Any], Any]
    thread_indices: list[Any]
    # The lanes of the running warp that have not had their turn yet: a lane that stops hands over to the next of them.
    turns: Any
    # Grows with each event that a livelock lacks: a meeting of threads, a change of memory, a return.
    progress: int

    @property
    def cuda(self) -> "Cuda":
        """The launch's `cuda`."""

    @property
    def block_indices(self) -> Sequence[Any]:
        """The index of every block."""

    def fiber(self) -> Any:
        """Return a greenlet for one thread."""

    def hand_over(self) -> None:
        """Let the next thread of this turn run, or if there is none, the scheduler."""

    def stop(self, thread: Any, operation: str) -> None:
        """Stop the running `thread` at `operation` until the operation is resolved."""

    def spin(self, thread: Any, address: Any = None, seen: Any = None) -> None:
        """Count an atomic of the running `thread` that found `seen` and left it so."""

    def turn(self, thread: Any) -> None:
        """Count what may be one turn of a spin loop without an atomic."""

    def update(self, thread: Any) -> None:
        """Count an atomic of the running `thread` that changed memory."""


class Cuda(Protocol):
    """The `cuda` that a simulated kernel sees. Implemented by `machine.api.Cuda`."""

    observer: Any  # a machine.observe.Observer, or None
    # Of the running block: the scheduler sets it anew before each block's turn. `current` tells the running thread.
    blockIdx: Any  # noqa: N815
    blockDim: Any  # noqa: N815
    shared: Any
    atomic: Any
    cg: Any
    fp16: Any
    bf16: Any
    random: Any
    current: Any  # the Thread that runs

    @property
    def grid_run(self) -> Grid:
        """The launch while it runs."""


# Only what arrays ask for: machine/observe.py's class hears of threads, too, and imports the arrays.
class Observer(Protocol):
    """What an `ObservedArray` asks of its observer. Implemented by `machine.observe.Observer` and its subclasses."""

    def read(self, array: Any, key: Any) -> Any:
        """Return `array[key]`."""

    def write(self, array: Any, key: Any, value: Any) -> None:
        """Do `array[key] = value`."""

    def value_of(self, array: Any, key: Any, value: Any) -> Any:
        """Return what indexing gave as the kernel sees it."""

    def read_vector(self, array: Any, key: tuple, width: int) -> Any:
        """Return `width` neighbouring elements, loaded by one instruction."""

    def write_vector(self, array: Any, key: tuple, values: tuple) -> None:
        """Store neighbouring elements by one instruction."""


# A block runs in passes (vectorised/rounds.py). Each barrier of a cluster begins a multiple of so many passes, which
# are more than there are between two of them.
CLUSTER_PASSES = 1 << 32


class LaneObserver(Protocol):
    """What the vectorised engine tells of all lanes of a frame at once. Implemented by `tracing.lanes.LaneRecorder`."""

    def argument(self, value: Any, name: str, offset: int) -> Any:
        """Return what to keep with an array of the host, whose first element is at place `offset` of its memory."""

    def shared(self, frame: Any, key: Any, array: Any, dynamic: bool) -> Any:
        """Return what to keep with the shared array of the call `key`."""

    def accessed(self, frame: Any, array: Any, places: Any, operation: str, width: int) -> None:
        """Take note that each lane accesses `width` elements of an array from its place on."""

    def reached(self, frame: Any, array: Any, places: Any, ranks: Any, operation: str) -> None:
        """Take note that each lane accesses an element of an array in the block of a rank in its cluster."""

    def barrier(self, frame: Any) -> None:
        """Take note that lanes are about to pass their blocks' barriers."""

    def cluster_wait(self, frame: Any) -> None:
        """Take note that lanes are about to pass their clusters' barriers."""

    def team_sync(self, frame: Any, teams: Any) -> None:
        """Take note that lanes are about to pass the barriers of their teams, a number for each lane."""

    def grid_sync(self, frame: Any) -> None:
        """Take note that all live threads of the grid are about to pass a grid sync."""

    def warp_operation(self, frame: Any, operation: str, sources: Any) -> None:
        """Take note that lanes are about to pass a warp operation; `sources`: the places of a shuffle's sources."""

    def fence(self, frame: Any) -> None:
        """Take note that lanes pass a fence of memory."""
