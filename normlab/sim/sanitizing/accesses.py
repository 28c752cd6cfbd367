"""Every access of a kernel, through the shadow of its memory."""

import sys
from typing import Any

import numpy as np

from normlab.sim.language.arrays import as_kernel_array
from normlab.sim.machine.observe import Copy, kernel_frame
from normlab.sim.machine.observed import Buffer, ObservedArray, ObservedRecord
from normlab.sim.machine.scheduler import TURN
from normlab.sim.machine.vector import Part, neighbours
from normlab.sim.sanitizing.bounds import address_of, poison, wrapped_address_of
from normlab.sim.sanitizing.clocks import NOTHING, Access, CopyClock
from normlab.sim.sanitizing.notes import Flight, Notes
from normlab.sim.sanitizing.shadow import GARBAGE, NONE, UPDATED, WRITTEN, Region, together

PATIENCE = 5040  # reads of what has been read, before others run: a multiple of those in one turn of any small loop
AGAIN = 60  # the same for who has waited in vain


class WatchedArray(ObservedArray):
    """An array that tells the observer of the usual access, one element inside, by the shortest way."""

    __slots__ = ("_elements", "_step")
    observer: "Accesses"

    def __init__(self, raw: np.ndarray, buffer: Buffer, observer: "Accesses", address: int):
        """As any."""
        super().__init__(raw, buffer, observer, address)
        simple = raw.ndim == 1 and raw.dtype.kind != "V"
        self._elements, self._step = (len(raw), raw.strides[0]) if simple else (0, 0)  # to be found by the shortest way

    def __getitem__(self, key: Any) -> Any:
        """Return an element, or a view."""
        observer = self.observer
        if type(key) is int and 0 <= key < self._elements:  # `address_of`, cut short
            address = self.address + key * self._step
            value = self.raw[key]
        else:
            found = address_of(self, key)
            if found is None:
                return observer.read(self, key)
            address, value = found, self.raw[key]
            if isinstance(value, np.void):
                return ObservedRecord(self, key)
        frame, clock = sys._getframe(1), observer.cuda.current.seen
        epoch = None if clock is None else clock.epoch
        access = None if epoch is None else epoch.accesses.get(frame.f_lasti)
        if access is None or access[1] is not frame.f_code:  # else `access`, cut short
            access = observer.access(frame)
        region: Region = self.buffer.state
        if region.reads_only and region.unit == self.itemsize:  # as most arguments; `note_read`, cut short
            seen = region.reads.get(address)
            if seen is None:
                region.reads[address] = access
            elif seen is access or (type(seen) is list and seen[-1] is access):
                observer.again()
            else:
                region.reads[address] = together(seen, access)
            return value
        if (
            region.settled  # the instruction has had enough races here
            and region.settled.get(address, NONE).get(access[2]) is access[1]
            and region.garbage is None
            and not region.left
            and region.unit == self.itemsize
        ):
            seen = region.reads.get(address)
            if seen is access or (type(seen) is list and seen[-1] is access):
                observer.again()
            return value
        observer.note_read(self, address, access)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store an element, or many by a slice."""
        observer = self.observer
        if type(key) is int and 0 <= key < self._elements:  # `address_of`, cut short
            address = self.address + key * self._step
        else:
            found = address_of(self, key)
            if found is None:
                observer.write(self, key, value)
                return
            address = found
        if type(value) is ObservedRecord:
            value = observer.whole(value)
        frame, clock = sys._getframe(1), observer.cuda.current.seen
        epoch = None if clock is None else clock.epoch
        access = None if epoch is None else epoch.accesses.get(frame.f_lasti)
        if access is None or access[1] is not frame.f_code:  # else `access`, cut short
            access = observer.access(frame)
        region: Region = self.buffer.state
        if (
            region.settled  # the instruction has had enough races here
            and region.settled.get(address, NONE).get(access[2]) is access[1]
            and region.garbage is None
            and not region.left
            and region.unit == self.itemsize
            and access[0].thread.fenced_for_block is NOTHING
        ):
            self.raw[key] = value
            return
        observer.write_at(self, key, value, address, access)


class InputArray(WatchedArray):
    """An array that nobody writes (`inputs.py`): of its elements only the indices are looked at."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        """Return an element."""
        try:
            if type(key) is not tuple:
                if key >= 0:
                    return self.raw[key]
            else:
                for position in key:
                    if position < 0:
                        break
                else:
                    return self.raw[key]
        except (IndexError, TypeError):
            pass
        return self.observer.read(self, key)


class OwnArray(WatchedArray):
    """A thread's local array, which no other thread reaches: its elements may be garbage, and are in no race.

    Kernels use few arrays as often: an element of one axis is found here, by the shortest way.
    """

    __slots__ = ("_first", "_garbage", "_written")

    def __init__(self, raw: np.ndarray, buffer: Buffer, observer: "Accesses", address: int):
        """As any; `buffer` has its shadow."""
        super().__init__(raw, buffer, observer, address)
        region: Region = buffer.state
        assert region.garbage is not None, "a local array begins without contents"
        if self._step != raw.itemsize:
            self._elements = 0
        self._first, self._garbage, self._written = address - region.start, region.garbage, bytes(raw.itemsize)

    def __getitem__(self, key: Any) -> Any:
        """Return an element, or a view."""
        if type(key) is int and 0 <= key < self._elements:
            size = self.itemsize
            at = self._first + key * size
            if self._garbage[at : at + size] == self._written:
                return self.raw[key]
        return WatchedArray.__getitem__(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store an element, or many by a slice."""
        if type(key) is int and 0 <= key < self._elements and type(value) is not ObservedRecord:
            size = self.itemsize
            at = self._first + key * size
            self._garbage[at : at + size] = self._written
            self.raw[key] = value
        else:
            WatchedArray.__setitem__(self, key, value)


class Accesses(Notes):
    """An observer that finds races, reads of garbage and bad indices."""

    array_class = WatchedArray

    def adopt(self, value: Any, name: str) -> Any:
        """Return what a kernel sees of an argument that it calls `name`."""
        array = super().adopt(value, name)
        return InputArray(array.raw, array.buffer, self, array.address) if name in self.inputs else array

    def made(self, array: np.ndarray, name: str, space: str, address: int, block: Any) -> ObservedArray:
        """Return a new shared or local array, in the memory of `block`, as the kernel sees it."""
        made = super().made(array, name, space, address, block)
        return OwnArray(array, made.buffer, self, address) if space == "local" else made

    # --- one element -------------------------------------------------------------------------------------------------

    def note_read(self, array: ObservedArray, address: int, access: Access) -> None:
        """Hear of a read of the element at `address`."""
        region: Region = array.buffer.state
        if region.left:
            access = self._acquired(region, address, access)
        for unit in (address,) if array.itemsize == region.unit else region.units(address, array.itemsize):
            if region.garbage is not None and region.garbage[unit - region.start] == GARBAGE:
                self.garbage("read", array.buffer, unit, access)
            if region.shared:
                seen = region.reads.get(unit)
                earlier = region.read(unit, access)
                if earlier is not None:
                    self.races("read", array.buffer, unit, access, earlier)
                if seen is access or (type(seen) is list and seen[-1] is access):
                    self.again()

    def again(self) -> None:
        """Hear of a read like the last one there: a thread with many of these may wait for another one's store."""
        self.repeated += 1
        if self.repeated >= PATIENCE:
            thread = self.cuda.current
            before = thread.polled.get("variables")
            thread.spins = TURN - 1
            self.cuda.grid_run.turn(thread)
            in_vain = thread.polled["variables"] == before
            self.repeated = PATIENCE - AGAIN if in_vain else 0  # not what others have left: stop at the same place

    def write_at(self, array: ObservedArray, key: Any, value: Any, address: int, access: Access) -> None:
        """Do `array[key] = value`, where `key` is the element at `address`."""
        region: Region = array.buffer.state
        size = array.itemsize
        region.reads_only = False
        if region.garbage is not None:
            region.written(address, size)
        conflict = None
        if region.shared:
            if access[0].thread.fenced_for_block is not NOTHING:
                region.leave(address, access[0].thread)
            for unit in (address,) if size == region.unit else region.units(address, size):
                earlier = region.write(unit, access)
                if earlier is not None:
                    conflict = unit, earlier
        if conflict is None:
            array.raw[key] = value
            return
        before = np.asarray(array.raw)[key].tobytes()
        array.raw[key] = value
        same_value = np.asarray(array.raw)[key].tobytes() == before
        self.races("write", array.buffer, conflict[0], access, conflict[1], same_value)

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Return where the running thread is to do its atomic operation: somewhere else if the index is bad."""
        address = address_of(array, key)
        access = self.access(sys._getframe(1))
        if address is None:
            if self.outside("atomic", array, key, access):
                return poison(array, key).reshape(1), 0
            address = wrapped_address_of(array, key)
        if address is not None:  # else no index at all, which NumPy refuses
            self._note_atomic(array, address, access)
        return array.raw, key

    def exchange(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """An atomic that takes no account of the old value, and so may be the first to write."""
        address = address_of(array, key)
        region: Region = array.buffer.state
        if address is not None and region.garbage is not None:
            region.written(address, array.itemsize)
        return self.atomic(array, key)

    def _note_atomic(self, array: ObservedArray, address: int, access: Access) -> None:
        region: Region = array.buffer.state
        region.reads_only = False
        thread = access[0].thread
        if region.left:
            access = self._acquired(region, address, access)
        thread.block.signals[thread, id(access[1]), access[2]] = address, access
        for unit in (address,) if array.itemsize == region.unit else region.units(address, array.itemsize):
            if region.garbage is not None and region.garbage[unit - region.start] != WRITTEN:
                self.garbage("atomic", array.buffer, unit, access)
                region.garbage[unit - region.start] = UPDATED
            if region.shared:
                earlier = region.atomic(unit, access)
                if earlier is not None:
                    self.races("atomic", array.buffer, unit, access, earlier)
        if region.shared and thread.fenced_for_block is not NOTHING:
            region.leave(address, thread)

    def _acquired(self, region: Region, address: int, access: Access) -> Access:
        """Let the running thread know what was left at `address`; return its access with what it knows now."""
        thread = access[0].thread
        region.take(address, thread)
        return access if thread.epoch is access[0] else (thread.now(), access[1], access[2])

    # --- many elements, views, and indices that are not inside -------------------------------------------------------

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Return `array[key]`, which is not the usual access."""
        access = self.access(sys._getframe(1))
        if self.outside("read", array, key, access):
            made = poison(array, key)
            if made.dtype.names:
                return ObservedRecord(self._of_nobody(array, made.reshape(1)), 0)
            return self._of_nobody(array, made) if made.ndim else made[()]
        value = array.raw[key]
        if isinstance(value, (np.ndarray, np.void)):
            return self.value_of(array, key, value)
        address = wrapped_address_of(array, key)
        if address is not None:
            self.note_read(array, address, access)
        return value

    def whole(self, record: ObservedRecord) -> Any:
        """Return a record with all its fields, which are read to be stored elsewhere."""
        array, key = record._array, record._key
        address = wrapped_address_of(array, key)
        assert address is not None  # or the record would be one of nobody's
        self.note_read(array, address, self.access(sys._getframe(1)))
        return array.raw[key]

    def _of_nobody(self, array: ObservedArray, made: np.ndarray) -> ObservedArray:
        """Return new memory as the kernel sees it, in the place of a view that lies outside."""
        buffer = Buffer(array.buffer.name, "local", made, 0)
        buffer.state = Region(0, max(1, made.itemsize), shared=False)
        return WatchedArray(made, buffer, self, 0)

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Do `array[key] = value`, which is not the usual access."""
        access = self.access(sys._getframe(1))
        if self.outside("write", array, key, access):
            return
        target = np.asarray(array.raw)[key]
        address = wrapped_address_of(array, key)
        if address is not None and not target.ndim:
            self.write_at(array, key, value, address, access)
            return
        if isinstance(value, ObservedArray):
            for index in np.ndindex(value.shape):
                value[index]  # noted as read
            value = value.raw
        view = array.viewed(target)
        for index, element in zip(np.ndindex(view.shape), np.broadcast_to(value, view.shape).flat, strict=True):
            view[index] = element

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Return `width` neighbouring elements, loaded by one instruction."""
        if isinstance(array, InputArray) and min(key) >= 0:
            found = super().read_vector(array, key, width)
            if len(found) == width:
                return found
        values, frame = as_kernel_array(np.empty(width, array.raw.dtype)), kernel_frame(sys._getframe(1))
        for part in range(width):
            place = (*key[:-1], key[-1] + part)
            address = address_of(array, place)
            if address is None:
                values[part] = array[place]
            else:
                values[part] = array.raw[place]
                self.note_read(array, address, self.access(frame))
        return values

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store neighbouring elements by one instruction."""
        frame = kernel_frame(sys._getframe(1))
        for part, value in enumerate(values):
            place = (*key[:-1], key[-1] + part)
            address = address_of(array, place)
            if address is None:
                array[place] = value
            else:
                self.write_at(array, place, value, address, self.access(frame))

    # --- asynchronous copies -----------------------------------------------------------------------------------------

    def begin_copy(self, target: Part, source: Part) -> Copy | None:
        """Note the reads of the source, and that from now on somebody whom nothing orders writes the target."""
        array, key, width = target
        values = np.asarray(self.read_vector(*source)).view(array.raw.dtype)
        access = self.access(sys._getframe(1))
        self.copied.add((id(access[1]), access[2]))
        indices = [(*key[:-1], key[-1] + part) for part in range(width)]
        addresses = [address for index in indices if (address := address_of(array, index)) is not None]
        if len(addresses) < width:
            for index in indices:
                self.outside("copy", array, index, access)
            return None
        thread = access[0].thread
        if thread not in self.copiers:
            self.copiers[thread] = CopyClock(thread)
        under_way = self.copiers[thread].now(), access[1], access[2]
        flight = Flight(array.buffer, addresses, under_way)
        self._write_all(flight, access, under_way)
        thread.end_epoch()  # a read like one before is another one now: the copy may have come in between
        self.memory(array.buffer.block).copies[id(flight)] = flight
        return Copy(neighbours(array.raw, key, width), values, flight)

    def end_copy(self, copy: Copy) -> None:
        """Note that what was under way is written now, by the thread that has waited for it."""
        flight: Flight = copy.seen
        region: Region = flight.buffer.state
        del self.memory(flight.buffer.block).copies[id(flight)]
        for unit in flight.units():
            region.arrive(unit, flight.under_way)
        for address in flight.addresses:
            region.written(address, flight.buffer.array.itemsize)
        _, code, instruction = flight.under_way
        self._write_all(flight, (self.clock(self.cuda.current).now(), code, instruction))

    def _write_all(self, flight: Flight, access: Access, under_way: Access | None = None) -> None:
        for unit in flight.units():
            earlier = flight.buffer.state.write(unit, access, under_way)
            if earlier is not None:
                self.races("write", flight.buffer, unit, access, earlier)
