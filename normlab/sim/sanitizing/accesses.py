"""Record every access except the usual one: views, slices, records, vectors, atomics, and indices out of bounds.

`arrays.py` records the usual access, to one element inside an array. An access out of bounds becomes a finding and the
launch goes on: a read gives poison, a write is dropped.
"""

import sys
from typing import Any

import numpy as np

from normlab.sim.language.arrays import as_kernel_array
from normlab.sim.machine.observe import kernel_frame
from normlab.sim.machine.observed import Buffer, ObservedArray, ObservedRecord
from normlab.sim.sanitizing.arrays import InputArray, WatchedArray
from normlab.sim.sanitizing.bounds import address_of, poison, wrapped_address_of
from normlab.sim.sanitizing.elements import Elements
from normlab.sim.sanitizing.notes import Notes
from normlab.sim.sanitizing.shadow import Region
from normlab.sim.sanitizing.watch import Watch


class Accesses:
    """Split an access into elements; `Elements` records the elements inside an array, `Notes` reports the others."""

    def __init__(self, watch: Watch, notes: Notes, elements: Elements):
        """Report bad indices to `notes`, and record elements in `elements`."""
        self._watch, self._notes, self._elements = watch, notes, elements

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Return `array[key]`: a view, a record, or an element by a negative index; poison for an index outside."""
        access = self._watch.access(sys._getframe(1))
        if self._notes.outside("read", array, key, access):
            # The kernel goes on with NaN or a large integer, so that one run finds more than its first mistake.
            made = poison(array, key)
            if made.dtype.names:
                return ObservedRecord(_unshared(array, made.reshape(1)), 0)
            return _unshared(array, made) if made.ndim else made[()]
        value = array.raw[key]
        if isinstance(value, np.ndarray):
            return array.viewed(value)
        if isinstance(value, np.void):
            return ObservedRecord(array, key)
        address = wrapped_address_of(array, key)
        if address is not None:
            self._elements.note_read(array, address, access)
        return value

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Do `array[key] = value` element by element; drop it if an index is outside."""
        access = self._watch.access(sys._getframe(1))
        if self._notes.outside("write", array, key, access):
            return
        # Through a plain array: an integer subclass would load the element as a 64-bit number.
        target = np.asarray(array.raw)[key]
        # Here although nothing is outside: an index that is negative on purpose, or a key that makes a view.
        address = wrapped_address_of(array, key)
        if address is not None and not target.ndim:
            self._elements.write_at(array, key, value, address, access)
            return
        if isinstance(value, ObservedArray):
            for index in np.ndindex(value.shape):
                value[index]  # so that the read of each element is noted
            value = value.raw
        # One element after another through __setitem__, each with a shadow of its own: `x[2:6] = 0` can race at four of
        # them.
        view = array.viewed(target)
        for index, element in zip(np.ndindex(view.shape), np.broadcast_to(value, view.shape).flat, strict=True):
            view[index] = element

    def poll(self, array: ObservedArray, key: Any) -> Any:
        """Return `array[key]`, loaded by `ldcv`, which may meet other threads' atomics."""
        address = wrapped_address_of(array, key)
        if address is None or isinstance(array, InputArray):
            return array[key]
        access = self._watch.access(sys._getframe(1))
        self._notes.outside("read", array, key, access)  # inside by its address; a computed negative index is a finding
        self._elements.note_read(array, address, access, polled=True)
        return array.raw[key]

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Return where the running thread does its atomic operation: on poison if the index is outside."""
        address = address_of(array, key)
        access = self._watch.access(sys._getframe(1))
        if address is None:
            if self._notes.outside("atomic", array, key, access):
                # The operation itself still happens, on memory that is thrown away: its result may decide a branch.
                return poison(array, key).reshape(1), 0
            address = wrapped_address_of(array, key)
        if address is not None:  # else the key is no index at all, and NumPy raises
            self._elements.note_atomic(array, address, access)
        return array.raw, key

    def exchange(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Do as `atomic`, for an operation that ignores the old value, and so may be the first write of the element."""
        address = wrapped_address_of(array, key)
        region: Region = array.buffer.state
        # Before `atomic`, which would report that the garbage there was read.
        if address is not None and region.garbage is not None:
            region.written(address, array.itemsize)
        return self.atomic(array, key)

    def updated(self, array: ObservedArray, key: Any) -> None:
        """Let `Locks` know that an atomic has changed an element."""
        address = wrapped_address_of(array, key)
        if address is not None:
            self._elements.locks.changed(array.buffer, address, self._watch.access(sys._getframe(1)))

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Return `width` neighbouring elements, loaded by one instruction."""
        if isinstance(array, InputArray) and min(key) >= 0:  # as for a single element, only the indices matter
            found = array.raw[(*key[:-1], slice(key[-1], key[-1] + width))]
            if len(found) == width:
                return found
        values, frame = as_kernel_array(np.empty(width, array.raw.dtype)), kernel_frame(sys._getframe(1))
        for part in range(width):  # each element has its own shadow, all of them one line
            place = (*key[:-1], key[-1] + part)
            address = address_of(array, place)
            if address is None:
                # One element at a time: that of a vector which is outside is a finding, its neighbours are loaded.
                values[part] = array[place]
            else:
                values[part] = array.raw[place]
                self._elements.note_read(array, address, self._watch.access(frame))
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
                self._elements.write_at(array, place, value, address, self._watch.access(frame))


def _unshared(array: ObservedArray, made: np.ndarray) -> ObservedArray:
    """Return poison as an observed array, in place of a view out of bounds; accesses to it cannot race."""
    # Local and without garbage: no other thread reaches the poison, and reading it is no second finding.
    buffer = Buffer(array.buffer.name, "local", made, 0)
    buffer.state = Region(0, max(1, made.itemsize), shared=False)
    return WatchedArray(made, buffer, array.observer, 0)
