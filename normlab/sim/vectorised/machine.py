"""Hold the state of a chunk: so many blocks of the grid, all of whose threads run together.

A chunk is big enough for NumPy to be fast and small enough for the caches of a CPU. Chunks run one after another. A
chunk that cannot go on raises NotVectorisedError, or OrderError, and then the scheduler runs the launch, thread by
thread.

Accesses are recorded in an array's `Accesses`, which find two that race. Threads that meet, at a barrier or a warp
operation, order their accesses: `Machine.meet` ends what was recorded before. The atomics' sums of floats depend on the
order of the lanes, so they wait until their threads have met (`pending`).
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from normlab.sim.machine.threads import WARP_SIZE
from normlab.sim.protocols import LaneObserver
from normlab.sim.vectorised import atomics
from normlab.sim.vectorised.frames import Frame, Lanes
from normlab.sim.vectorised.memory import (
    Array,
    Records,
    Store,
    global_array,
    has_kind,
    local_array,
    new_memory,
    parts_of,
    seen_as,
    shared_array,
)
from normlab.sim.vectorised.proof import Proof, complete
from normlab.sim.vectorised.races import Accesses, Window
from normlab.sim.vectorised.refusal import NotVectorisedError, OrderError
from normlab.sim.vectorised.rounds import Rounds
from normlab.sim.vectorised.values import Vector

FEW_LANES = 12  # with fewer lanes the scheduler is faster: the time of NumPy's functions shrinks no further
MANY_TURNS = 1 << 12  # turns of loops between two counts of the lanes that made them
MOST_THREADS = 1 << 18  # of a grid whose blocks all run together, because they meet


class Launched:
    """What all chunks of a launch share: its extents, and the arrays of the host that the kernel has met."""

    def __init__(self, cuda: Any, cluster: int, recorded: set, watch: LaneObserver | None, proof: Proof | None):
        """Prepare a launch; `recorded`: keys of the arrays whose loads must be recorded, which grows.

        `cluster`: so many blocks, neighbours along x, make a cluster. `watch`: an observer, such as a trace, which is
        told of every access and every meeting. `proof`: what is to be proved of the launch, if anything is.
        """
        self.cuda, self.cluster, self.recorded, self.watch, self.proof = cuda, cluster, recorded, watch, proof
        grid, block = self.grid, self.block = cuda.gridDim, cuda.blockDim
        self.told = 0  # events that `watch` was told of
        self.threads, self.blocks = block.x * block.y * block.z, grid.x * grid.y * grid.z
        self.arrays: dict[tuple, Array] = {}
        self._kept: list[np.ndarray] = []  # alive, so that no other array gets one's address or id

    def array(self, array: np.ndarray, key: Any, name: str = "") -> Any:
        """Return a host's array as the kernel has it; the same memory has one store, however often it is met.

        `name`: the kernel's for an argument.
        """
        if array.dtype.names:
            return self._records(array, key)
        # The name of an argument is in the key, because an observer counts two arguments apart even if they are one
        # array.
        place = (array.__array_interface__["data"][0], array.dtype, array.shape, array.strides, name)
        if place not in self.arrays:
            made = global_array(array, key)
            if self.watch is not None and name:
                made.seen = self.watch.argument(array, name, made.offset)
            for other in self.arrays.values():  # the same elements under another name, shape or order of axes
                held, own = other.store.data, made.store.data
                # `data` is a flat stretch of memory, so its dtype, length and address identify it.
                if (held.dtype, held.size, _address(held)) == (own.dtype, own.size, _address(own)):
                    made.store = other.store
            # A kernel may name an array from outside after it has stored into another (see `Store.before_store`).
            if any(one.backup is not None for one in self.overlapping(made.store)):
                raise NotVectorisedError("an array from outside shares memory with one that the kernel has written")
            if self.proof is not None and made.store.written is None:
                self.proof.adopted(made.store)
            self.arrays[place] = made
            self._kept.append(array)
        return self.arrays[place]

    def tell(self, event: str, *what: Any) -> None:
        """Tell the observer, if there is one, of an event, which is the name of a `LaneObserver`'s method."""
        if self.watch is not None:
            getattr(self.watch, event)(*what)
            self.told += 1

    def _records(self, array: np.ndarray, key: Any) -> Records:
        """Return a host's array of records: those of its fields whose elements are numbers.

        Raises NotVectorisedError for fields that overlap, and where an observer is told of accesses.
        """
        plain = np.asarray(array)
        described = dict(plain.dtype.fields or {})
        ends = sorted((offset, offset + dtype.itemsize) for dtype, offset, *_ in described.values())
        # NumPy lets fields overlap. Each field has a log of its own, so a race between two fields would go unnoticed.
        if self.watch is not None or any(end > begin for (_, end), (begin, _) in pairwise(ends)):
            raise NotVectorisedError(f"of an array of {plain.dtype}")
        memory = _address(plain), plain.dtype, plain.shape, plain.strides
        fields = {}
        for name, (dtype, *_) in described.items():
            # A single record has no axes, and so no strides: it gets no fields, and the scheduler runs a kernel that
            # reads one. `base`: a field may be an array itself.
            if has_kind(dtype.base) and plain.strides:
                made = self.array(plain[name], (key, name))
                made.store.records = memory
                fields[name] = made
        return Records(fields, plain.shape, plain.dtype)

    @property
    def fits_one_chunk(self) -> bool:
        """Whether all blocks may run together."""
        return self.blocks * self.threads <= MOST_THREADS

    def overlapping(self, store: Store) -> list[Store]:
        """Return the other stores that have memory in common with this one."""
        # Only the bounds of both are compared. A false alarm costs the scheduler's time, and no result. Fields of the
        # same records lie between each other and have no element in common.
        return [
            other.store
            for other in self.arrays.values()
            if other.store is not store
            and np.may_share_memory(other.store.original, store.original)
            and (store.records is None or store.records != other.store.records)
        ]

    def finish(self) -> None:
        """End the launch."""
        for array in self.arrays.values():
            array.store.finish()

    def restore(self) -> None:
        """Undo every store of the launch."""
        for array in self.arrays.values():
            array.store.restore()


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class Machine:
    """The threads of some neighbouring blocks: their numbers, their memory, and where they meet.

    Lane `l` is thread `l % threads` of the chunk's block `l // threads`.
    """

    def __init__(self, launch: Launched, first: int, blocks: int):
        """Begin `blocks` blocks, from the linear number `first` on."""
        self.launch, self.cuda, self.first, self.blocks = launch, launch.cuda, first, blocks
        threads = launch.threads
        self.size = blocks * threads
        warps = -(-threads // WARP_SIZE)
        self.warp_count, self.ragged = blocks * warps, bool(threads % WARP_SIZE)
        ids = np.arange(self.size)
        thread = ids % threads
        self.block_of = (ids // threads).astype(np.int32)
        # As on a GPU, a block's last warp may be short, and the next block begins with a warp of its own.
        self.warps = (self.block_of * warps + thread // WARP_SIZE).astype(np.int32)
        self.lanes_in_warp = thread % WARP_SIZE
        self._thread, self._block = thread, first + ids // threads
        self.all_lanes = Lanes(self, ids)
        self.alive, self.alive_count = np.ones(self.size, np.bool_), self.size
        self.rounds = Rounds(self)
        # Since the block's last barrier: each lane's team, warps with a barrier of their own, or -1 without one.
        self.team_of: np.ndarray | None = None
        self.arrived: np.ndarray | None = None  # the lanes that have arrived at their cluster's barrier (clusters.py)
        self.waited = np.zeros(self.size, np.bool_)  # the lanes that have waited there once, so all blocks have begun
        self.stored_remotely = False  # whether a lane has stored into another block, in the chunk
        self.remote: np.ndarray | None = None  # the lanes that have reached into another block since they arrived
        self.atomics = self.logged = 0  # atomic statements and fences of the chunk; accesses in all logs
        self.pending: list[atomics.Pending] = []  # sums of floats, until their threads have met
        self.ordered = False  # whether a result depends on the order of atomics
        self.turns = self.lane_turns = 0  # of loops, and the lanes that made them
        self.copies: Any = None  # asynchronous ones (copies.py)
        self._shared: dict[Any, Array | Records] = {}  # by the call that makes them
        self._dynamic: dict[np.dtype, Array] = {}
        self._memory: Any = None  # the dynamic shared memory of all blocks, its log, and which bytes have been written
        self._whole: Any = None
        self._written: Any = None
        self._recorded: list[Accesses] = []
        for array in launch.arrays.values():
            # Chunks run in the scheduler's order, so what an earlier chunk has read or written cannot race with this
            # one.
            array.store.accesses, array.store.was_read = None, False
            if array.store.key in launch.recorded:
                self.record(array.store)

    def special(self, name: Any) -> Any:
        """Return what each lane has by its place: "threadIdx.x", "laneid", "clusterrank", ("block", 256), ("lane", n).

        ("block", n): n times the number of its block in the chunk; ("lane", n): its number in the chunk.
        """
        match name:
            case "block", times:
                return self._uniform_or(self.block_of.astype(np.int64) * times)
            case "lane", _:
                return self._uniform_or(np.arange(self.size))
            case "clusterrank":
                return self._uniform_or(self._block % self.launch.cluster, self.launch.cluster)
            case "laneid":
                return self._uniform_or(self.lanes_in_warp)
        what, axis = name.split(".")
        extent, linear = (self.launch.block, self._thread) if what == "threadIdx" else (self.launch.grid, self._block)
        columns, rows, planes = extent
        if axis == "x":
            return self._uniform_or(linear % columns, columns)
        if axis == "y":
            return self._uniform_or(linear // columns % rows, rows)
        return self._uniform_or(linear // (columns * rows), planes)

    def _uniform_or(self, numbers: np.ndarray, extent: int | None = None) -> Any:
        """Return numbers as a value: a Python int where all lanes have the same."""
        first = int(numbers[0])
        # In a chunk of one block the block's index, and the beginning of its shared arrays, are one number: as a Python
        # int it keeps all that is computed from it uniform.
        if self.size == 1 or extent == 1 or (self.blocks == 1 and (numbers == first).all()):
            return first
        return Vector(int, numbers.astype(np.int64, copy=False), int(numbers.min()), int(numbers.max()))

    # --- memory ------------------------------------------------------------------------------------------------------

    def shared(self, site: Any, shape: tuple[int, ...], dtype: np.dtype, alignment: int) -> Array | Records:
        """Return the shared array of a call, which is made when the first threads come to it."""
        # Made for all blocks of the chunk at once: lanes that come later, in another branch or turn, must find the
        # same.
        if site not in self._shared:
            self._shared[site] = self._made(shape, dtype, partial(shared_array, self.blocks, alignment))
            for part in parts_of(self._shared[site]):
                self.record(part.store)
        return self._shared[site]

    def _made(self, shape: tuple[int, ...], dtype: np.dtype, maker: Callable) -> Array | Records:
        made = new_memory(shape, dtype, maker)
        if self.launch.proof is not None:
            for part in parts_of(made):
                part.store.note_writes()
        return made

    def static_bytes(self) -> int:
        """Return the bytes of a block's shared arrays of fixed shape."""
        return sum(prod(array.shape) * array.dtype.itemsize for array in self._shared.values())

    def dynamic(self, dtype: np.dtype, size: int, fill: int) -> Array:
        """Return the dynamic shared memory as an array of a dtype; the arrays of all dtypes share the memory."""
        if dtype not in self._dynamic:
            if self._memory is None:
                # Each block's part is rounded up to 16 bytes, so that it can be seen as any dtype and begins aligned.
                self._memory = np.full(self.blocks * (-(-size // 16) * 16), fill, np.uint8)
                self._whole = Accesses(self, self._memory, False)
                self._recorded.append(self._whole)
                self._written = np.zeros(len(self._memory), np.uint8)
            whole = self._whole
            unit = min(dtype.itemsize, 8)  # a complex128 is two units: NumPy has no integers of 16 bytes
            # All dtypes share one log, which counts the smallest of them: a race may be between two dtypes.
            if unit < whole.unit:
                whole.count_in(unit)
            made = seen_as(self._memory, dtype, size, self.blocks)
            made.store.accesses = Window(whole, dtype.itemsize)
            if self.launch.proof is not None:
                made.store.note_writes(self._written)
            self._dynamic[dtype] = made
        return self._dynamic[dtype]

    def local(self, shape: tuple[int, ...], dtype: np.dtype) -> Array | Records:
        """Return a new local array of every lane."""
        return self._made(shape, dtype, partial(local_array, self.size))

    def outer(self, array: np.ndarray, name: str) -> Any:
        """Return an array that the kernel names from outside, and perhaps meets only now."""
        # The launch knows arrays by their memory: one that is an argument, too, has one store under both names.
        made = self.launch.array(array, ("outer", name))
        for part in parts_of(made):
            store = part.store
            # Two arrays may have one name. What has been read unrecorded begins anew at its first store.
            if store.accesses is None and not store.was_read and store.key in self.launch.recorded:
                self.record(store)
        return made

    def record(self, store: Store) -> None:
        """Record the accesses to a store from now on."""
        store.accesses = Accesses(self, store.data, store.space == "global")
        self._recorded.append(store.accesses)

    def turn(self, width: int) -> None:
        """Count one more turn of a loop; raises NotVectorisedError if so few lanes run together that it is slow."""
        self.turns += 1
        self.lane_turns += width
        if self.turns % MANY_TURNS == 0 and self.lane_turns < FEW_LANES * self.turns:
            raise NotVectorisedError("few threads run in long loops, which the scheduler does faster")

    # --- meetings ----------------------------------------------------------------------------------------------------

    def returned(self, ids: np.ndarray) -> None:
        """Note that threads have returned from the kernel: no meeting waits for them."""
        # Whether the block, or the other one, has ended when it is needed would depend on the schedule.
        for lanes in (self.arrived, self.remote):
            if lanes is not None and lanes[ids].any():
                raise NotVectorisedError("a thread ends while its cluster may need its block, or it another block")
        self.alive[ids] = False
        self.alive_count -= len(ids)

    def barrier(self, frame: Frame) -> None:
        """Let the lanes meet at their blocks' barriers; raises NotVectorisedError unless all live threads are here."""
        lanes = frame.lanes
        self.all_of(self.block_of, lanes, "only some threads of a block come to a barrier together")
        complete(self, lanes.ids)
        # Before the lanes' pass changes: the observer notes in which one they have come.
        self.launch.tell("barrier", frame)
        self.rounds.barrier(lanes.ids, self.block_of[lanes.ids])
        self.meet("block", lanes.ids)

    def all_of(self, owners: np.ndarray, lanes: Lanes, otherwise: str) -> None:
        """Raise NotVectorisedError(otherwise) unless lanes come with all other live threads of their owners."""
        if lanes.width != self.alive_count:
            # There are no more blocks or clusters than warps, so both counts have an entry for every owner.
            here = np.bincount(owners[lanes.ids], minlength=self.warp_count)
            alive = np.bincount(owners[self.alive], minlength=self.warp_count)
            if ((here != 0) & (here != alive)).any():
                raise NotVectorisedError(otherwise)

    @property
    def teams_or_warps(self) -> np.ndarray:
        """Return an owner for each lane: its team, or the warp of a lane that has met no team."""
        if self.team_of is None:
            return self.warps
        # Warps count on from the last team, so that none has a team's number.
        return np.where(self.team_of < 0, self.team_of.max() + 1 + self.warps, self.team_of)

    def meet(self, level: str, ids: np.ndarray) -> None:
        """Compare the accesses before a meeting of whole warps, teams, blocks or clusters; do the sums that waited."""
        met = None
        if len(ids) != self.alive_count:
            if self.pending:
                # `atomics.settle` does the sums of all blocks at once, and some blocks have not met yet.
                raise NotVectorisedError("float sums wait while only some blocks meet")
            # Threads that have returned meet, too: all others wait for none of them.
            owners = self.warps if level in ("warp", "team") else self.block_of
            units = np.zeros(self.warp_count, np.bool_)
            units[owners[ids]] = True
            met = units[owners]
        for accesses in self._recorded:
            accesses.meet(level, met)
        # After the block's barrier a team's barrier may be used by other warps.
        if level in ("block", "cluster") and self.team_of is not None:
            self.team_of[slice(None) if met is None else met] = -1
        level = "block" if level == "cluster" else level
        if level == "block" and self.pending:
            # Sums in global memory wait for the other blocks of the chunk, too.
            alone = self.blocks == 1
            atomics.settle(self, [accesses for accesses in self._recorded if alone or not accesses.everywhere])
        # What the logs of global memory keep for the end of the chunk still counts.
        if level == "block" and met is None:
            self.logged = sum(accesses.logged() for accesses in self._recorded)

    def forbid_pending(self, accesses: Accesses, places: Any) -> None:
        """Raise OrderError if an element is read or written whose float sum is still to be done."""
        waiting = [one.places for one in self.pending if one.accesses is accesses]
        if waiting and np.isin(places, np.concatenate(waiting)).any():
            raise OrderError("a sum is used before all of its threads have met")

    def grid_sync(self, frame: Frame) -> None:
        """Let all live threads of the grid meet."""
        self.launch.tell("grid_sync", frame)
        complete(self, frame.lanes.ids)
        self.rounds.barrier(frame.lanes.ids, self.block_of[frame.lanes.ids])
        # All blocks have met, so nothing from before can race with what follows.
        self._compare_blocks()

    def _compare_blocks(self) -> None:
        """Compare all accesses, forget them, and do the sums that wait."""
        for accesses in self._recorded:
            accesses.finish()
        atomics.settle(self, self._recorded)
        self.logged = 0

    def finish(self) -> None:
        """End the chunk."""
        # Lanes that come to the kernel's end without a `return` are still alive here.
        self.returned(np.flatnonzero(self.alive))
        self._compare_blocks()
        # A thread of the scheduler gives way after TURN atomics, which changes the order. `atomics` counts statements
        # that any lane runs, so no thread has made more.
        if self.ordered and self.atomics >= atomics.TURN:
            raise OrderError("so many atomic operations make the scheduler's threads take turns")
