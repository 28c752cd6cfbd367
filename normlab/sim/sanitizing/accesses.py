"""The memory side of the sanitizer: every access goes through the shadow of its memory, and what is wrong is noted."""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from normlab.sim.memory import DYNAMIC_ADDRESS, fresh
from normlab.sim.observe import KERNEL_MARK, Buffer, ObservedArray, ObservedRecord, Observer, pointer
from normlab.sim.sanitizing.advice import against_garbage, against_index, against_race
from normlab.sim.sanitizing.bounds import address_of, index_of, poison, positions_of
from normlab.sim.sanitizing.clocks import NOTHING, Access, BlockClock, ThreadClock
from normlab.sim.sanitizing.collector import Collector, act_of
from normlab.sim.sanitizing.findings import Finding
from normlab.sim.sanitizing.shadow import GARBAGE, UPDATED, WRITTEN, Region
from normlab.sim.scheduler import WARP_SIZE


class BlockMemory:
    """What the sanitizer keeps of one block: its clock, and the shadows of its shared memory."""

    __slots__ = ("clock", "dynamic", "regions", "returned")

    def __init__(self, index: tuple[int, int, int]):
        """Start without shared memory."""
        self.clock = BlockClock(index)
        self.regions: list[Region] = []
        self.dynamic: Region | None = None
        self.returned: ThreadClock | None = None  # the last thread that has


class Accesses(Observer):
    """An observer that finds races, reads of garbage and bad indices."""

    def __init__(self, uninitialized: Sequence[np.ndarray]):
        """Know of no memory yet. Of the arguments, `uninitialized` have no contents."""
        super().__init__()
        self.uninitialized = uninitialized
        self.collector = Collector()
        self.blocks: dict[Any, BlockMemory] = {}  # of the blocks that have not ended
        self.regions: dict[int, Region] = {}  # of global memory, by the allocation's address

    # --- who and where -----------------------------------------------------------------------------------------------

    def clock(self, thread: Any) -> ThreadClock:
        """Return the clock of a thread."""
        if thread.seen is None:
            index, extent = thread.index, self.cuda.blockDim
            warp = (index.x + extent.x * (index.y + extent.y * index.z)) // WARP_SIZE
            thread.seen = ThreadClock(self.memory(thread.block).clock, warp, thread.lane, tuple(index))
        return thread.seen

    def memory(self, block: Any) -> BlockMemory:
        """Return what is kept of a block."""
        if block not in self.blocks:
            self.blocks[block] = BlockMemory(tuple(block.index))
        return self.blocks[block]

    def access(self, frame: FrameType | None) -> Access:
        """Return the running thread's access at the innermost line of kernel source around `frame`."""
        while KERNEL_MARK not in frame.f_globals:  # type: ignore[union-attr]
            frame = frame.f_back  # type: ignore[union-attr]
        clock = self.cuda.current.seen
        if clock is None:
            clock = self.clock(self.cuda.current)
        epoch = clock.epoch
        if epoch is None:
            epoch = clock.now()
        code, instruction = frame.f_code, frame.f_lasti  # type: ignore[union-attr]
        access = epoch.accesses.get(instruction)
        if access is None or access[1] is not code:
            access = epoch.accesses[instruction] = (epoch, code, instruction)
        return access

    # --- memory ------------------------------------------------------------------------------------------------------

    def add(self, buffer: Buffer) -> None:
        """Give memory its shadow."""
        array, block = buffer.array, None if buffer.space == "global" else self.memory(self.cuda.current.block)
        unit = max(1, array.itemsize)
        if block is None:
            start, owner = next(
                (start, owner)
                for start, owner in self._owners.values()
                if start <= buffer.address < start + max(1, owner.nbytes)
            )
            region = buffer.state = self.regions.setdefault(start, Region(start, unit))
            region.units(buffer.address, unit)
            self._empty(buffer, region, owner)
            return
        dynamic = buffer.space == "shared" and buffer.address == DYNAMIC_ADDRESS
        if dynamic and block.dynamic is not None:
            buffer.state = block.dynamic
            return
        region = buffer.state = Region(buffer.address, unit, shared=buffer.space == "shared")
        size = self.cuda.current.block.shared["dynamic"].nbytes if dynamic else array.nbytes
        region.garbage = bytearray([GARBAGE]) * size
        if region.shared:
            block.regions.append(region)
        if dynamic:
            block.dynamic = region

    def _empty(self, buffer: Buffer, region: Region, owner: np.ndarray) -> None:
        """Note which elements of an argument count as never written."""
        lowest, end = byte_bounds(owner)
        for array in self.uninitialized:
            if np.may_share_memory(array, buffer.array):
                low, high = byte_bounds(array)
                inside = lowest <= low and high <= end  # or a tensor's memory, of which NumPy knows no owner
                part = array if inside else buffer.array
                if region.garbage is None:
                    region.garbage = bytearray(end - lowest)
                offset = buffer.address + pointer(part) - pointer(buffer.array) - region.start
                region.never_written(offset, part.shape, part.strides, part.itemsize)

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Return `array[key]`."""
        address = address_of(array, key)
        if address is None:
            return self._read_unusual(array, key)
        value = array.raw[key]
        if isinstance(value, np.void):
            return ObservedRecord(array, key)
        self._note_read(array, address, self.access(sys._getframe(2)))
        return value

    def _note_read(self, array: ObservedArray, address: int, access: Access) -> None:
        region: Region = array.buffer.state
        if region.left:
            access = self._acquired(region, address, access)
        for unit in (address,) if array.itemsize == region.unit else region.units(address, array.itemsize):
            if region.garbage is not None and region.garbage[unit - region.start] == GARBAGE:
                self._garbage("read", array.buffer, unit, access)
            if region.shared:
                earlier = region.read(unit, access)
                if earlier is not None:
                    self._races("read", array.buffer, unit, access, earlier)

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Do `array[key] = value`."""
        address = address_of(array, key)
        if address is None:
            self._write_unusual(array, key, value)
            return
        earlier = self._note_write(array, address, self.access(sys._getframe(2)))
        if earlier is None:
            array.raw[key] = value
            return
        access, unit, found = earlier
        before = np.asarray(array.raw)[key].tobytes()
        array.raw[key] = value
        self._races("write", array.buffer, unit, access, found, np.asarray(array.raw)[key].tobytes() == before)

    def _note_write(
        self, array: ObservedArray, address: int, access: Access
    ) -> tuple[Access, int, list[tuple[str, Access]]] | None:
        """Return the accesses that race with this one, if any: the caller knows whether the value is a new one."""
        region: Region = array.buffer.state
        size = array.itemsize
        if region.garbage is not None:
            offset = address - region.start
            region.garbage[offset : offset + size] = bytes(size)  # WRITTEN
        if not region.shared:
            return None
        thread = access[0].thread
        if thread.fenced_for_block is not NOTHING:
            region.leave(address, thread)
        conflict = None
        for unit in (address,) if size == region.unit else region.units(address, size):
            earlier = region.write(unit, access)
            if earlier is not None and conflict is None:
                conflict = access, unit, earlier
        return conflict

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Return where the running thread is to do its atomic operation: somewhere else if the index is bad."""
        address = address_of(array, key)
        access = self.access(sys._getframe(1))
        if address is None:
            if self._outside("atomic", array, key, access):
                return poison(array, key).reshape(1), 0
            address = address_of(array, tuple(position % extent for _, position, extent in positions_of(array, key)))
            if address is None:
                return array.raw, key  # no index at all: NumPy says so
        self._note_atomic(array, address, access)
        return array.raw, key

    def exchange(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """An atomic that takes no account of the old value, and so may be the first to write."""
        address = address_of(array, key)
        region: Region = array.buffer.state
        if address is not None and region.garbage is not None:
            offset = address - region.start
            region.garbage[offset : offset + array.itemsize] = bytes(array.itemsize)
        return self.atomic(array, key)

    def _note_atomic(self, array: ObservedArray, address: int, access: Access) -> None:
        region: Region = array.buffer.state
        thread = access[0].thread
        if region.left:
            access = self._acquired(region, address, access)
        if array.buffer.space == "global":
            thread.block.signal = address, access[1], access[2]
        for unit in (address,) if array.itemsize == region.unit else region.units(address, array.itemsize):
            if region.garbage is not None and region.garbage[unit - region.start] != WRITTEN:
                self._garbage("atomic", array.buffer, unit, access)
                region.garbage[unit - region.start] = UPDATED
            if region.shared:
                earlier = region.atomic(unit, access)
                if earlier is not None:
                    self._races("atomic", array.buffer, unit, access, earlier)
        if region.shared and thread.fenced_for_block is not NOTHING:
            region.leave(address, thread)

    def _acquired(self, region: Region, address: int, access: Access) -> Access:
        """Let the running thread know what was left at `address`; return its access with what it knows now."""
        thread = access[0].thread
        region.take(address, thread)
        if thread.epoch is access[0]:
            return access
        return thread.now(), access[1], access[2]

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Return `width` neighbouring elements, loaded by one instruction."""
        access = self.access(sys._getframe(1))
        values = fresh((width,), array.raw.dtype)
        for part in range(width):
            values[part] = self._element(array, (*key[:-1], key[-1] + part), access)
        return values

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store neighbouring elements by one instruction."""
        for part, value in enumerate(values):
            self.write(array, (*key[:-1], key[-1] + part), value)

    def _element(self, array: ObservedArray, key: tuple, access: Access) -> Any:
        address = address_of(array, key)
        if address is None:
            if self._outside("read", array, key, access):
                return poison(array, key)[()]
            address = address_of(array, tuple(position % extent for _, position, extent in positions_of(array, key)))
        if address is not None:
            self._note_read(array, address, access)
        return array.raw[key]

    # --- views, and indices that are not inside ----------------------------------------------------------------------

    def _read_unusual(self, array: ObservedArray, key: Any) -> Any:
        access = self.access(sys._getframe(1))
        if self._outside("read", array, key, access):
            made = poison(array, key)
            if made.dtype.names:
                return ObservedRecord(self._scratch(array, made.reshape(1)), 0)
            return self._scratch(array, made) if made.ndim else made[()]
        value = array.raw[key]
        if isinstance(value, np.ndarray):
            return array.viewed(value)
        if isinstance(value, np.void):
            return ObservedRecord(array, key)
        address = address_of(array, tuple(position % extent for _, position, extent in positions_of(array, key)))
        if address is not None:
            self._note_read(array, address, access)
        return value

    def _scratch(self, array: ObservedArray, made: np.ndarray) -> ObservedArray:
        """Return memory of nobody's as the kernel sees it, in the place of a view that lies outside."""
        buffer = Buffer(array.buffer.name, "local", made, 0)
        buffer.state = Region(0, max(1, made.itemsize), shared=False)
        return type(array)(made, buffer, self, 0)

    def _write_unusual(self, array: ObservedArray, key: Any, value: Any) -> None:
        access = self.access(sys._getframe(1))
        if self._outside("write", array, key, access):
            return
        if isinstance(value, ObservedArray):
            for index in np.ndindex(value.shape):
                self._element(value, index, access)
            value = value.raw
        target = np.asarray(array.raw)[key]
        if not isinstance(target, np.ndarray) or target.ndim == 0:  # one element, counted from the end
            positions = tuple(position % extent for _, position, extent in positions_of(array, key))
            if len(positions) == len(array.shape):
                self.write(array, positions if len(positions) > 1 else positions[0], value)
                return
        else:
            view = array.viewed(target)
            for index in np.ndindex(view.shape):
                address = address_of(view, index)
                assert address is not None
                conflict = self._note_write(view, address, access)
                if conflict is not None:
                    self._races("write", array.buffer, conflict[1], access, conflict[2])
        array.raw[key] = value

    # --- what is wrong -----------------------------------------------------------------------------------------------

    def _outside(self, operation: str, array: ObservedArray, key: Any, access: Access) -> bool:
        """Note an index that is negative or out of bounds; return whether it is out of bounds."""
        outside = False
        positions, name = positions_of(array, key), array.buffer.name
        for axis, position, extent in positions:
            if 0 <= position < extent:
                continue
            kind = "negative-index" if -extent <= position < 0 else "out-of-bounds"
            outside = outside or kind == "out-of-bounds"

            def make(kind: str = kind, wrong: tuple = (axis, position, extent)) -> Finding:
                return Finding(
                    kind,
                    name,
                    array.buffer.space,
                    tuple(place for _, place, _ in positions),
                    act_of(operation, access),
                    None,
                    against_index(kind, name, *wrong),
                )

            self.collector.add((kind, name, id(access[1]), access[2]), access[1], make)
        return outside

    def _garbage(self, operation: str, buffer: Buffer, address: int, access: Access) -> None:
        region: Region = buffer.state
        if not region.shared:
            self._note_garbage(operation, buffer, address, access)
            return
        pending = region.pending.setdefault(address, [])
        if not pending or pending[-1][1] is not access:
            pending.append((operation, access, buffer))

    def _note_garbage(self, operation: str, buffer: Buffer, address: int, access: Access) -> None:
        def make() -> Finding:
            first = act_of(operation, access)
            advice = against_garbage(buffer.name, buffer.space, operation, first.line)
            index = index_of(buffer, address)
            return Finding("uninitialized-read", buffer.name, buffer.space, index, first, None, advice)

        event = "uninitialized-read", buffer.name, id(access[1]), access[2]
        self.collector.add(event, access[1], make)

    def settle(self, region: Region) -> None:
        """Note the reads of garbage that no other thread's write was in a race with."""
        for address, reads in region.pending.items():
            for operation, access, buffer in reads:
                self._note_garbage(operation, buffer, address, access)
        region.pending.clear()

    def _races(
        self,
        operation: str,
        buffer: Buffer,
        address: int,
        access: Access,
        earlier: list[tuple[str, Access]],
        same_value: bool = False,
    ) -> None:
        """Note that `access` races with `earlier` ones."""
        buffer.state.pending.pop(address, None)  # whether it was written yet is a matter of luck: the race is the cause
        for other_operation, other in earlier:

            def make(other_operation: str = other_operation, other: Access = other) -> Finding:
                first, second = act_of(other_operation, other), act_of(operation, access)
                advice = against_race(first, second, other, access)
                return Finding("race", buffer.name, buffer.space, index_of(buffer, address), first, second, advice)

            event = "race", buffer.name, id(access[1]), access[2], id(other[1]), other[2]
            benign = same_value and other_operation == "write"
            self.collector.add(event, (access[1], other[1]), make, benign)
