"""Define the arrays that a kernel sees under the sanitizer; each records the usual access itself, to save time."""

import sys
from typing import Any

import numpy as np

from normlab.sim.machine.observed import Buffer, ObservedArray, ObservedRecord
from normlab.sim.sanitizing.bounds import address_of
from normlab.sim.sanitizing.clocks import NOTHING
from normlab.sim.sanitizing.elements import Elements
from normlab.sim.sanitizing.shadow import NONE, Region, together


class WatchedArray(ObservedArray):
    """An array that records an access to one element inside it, and asks the observer for every other access.

    A kernel under the sanitizer spends most of its time here. `__getitem__` and `__setitem__` therefore repeat the
    usual case of `address_of`, `Watch.access` and `Elements.note_read` instead of calling them.

    An epoch keeps one access per instruction (`clocks.Access`), so `is` compares accesses. A region is the shadow of
    the array's allocation (`shadow.Region`).
    """

    __slots__ = ("_extent", "_step", "elements")

    def __init__(self, raw: np.ndarray, buffer: Buffer, observer: Any, address: int):
        """Stand for `raw`, as any observed array; `observer`: the Sanitizer, whose `elements` records each access."""
        super().__init__(raw, buffer, observer, address)
        self.elements: Elements = observer.elements
        simple = raw.ndim == 1 and raw.dtype.kind != "V"  # one axis, no records: the index gives the address at once
        self._extent, self._step = (len(raw), raw.strides[0]) if simple else (0, 0)

    def __getitem__(self, key: Any) -> Any:
        """Return an element, or a view."""
        elements = self.elements
        # Python's int is the usual index; NumPy's integers, tuples and arrays of more axes take the other way.
        if type(key) is int and 0 <= key < self._extent:  # `address_of`, cut short
            address = self.address + key * self._step
            value = self.raw[key]
        else:
            found = address_of(self, key)
            if found is None:
                return self.observer.read(self, key)
            address, value = found, self.raw[key]
            if isinstance(value, np.void):
                return ObservedRecord(self, key)
        frame, clock = sys._getframe(1), elements.cuda.current.seen
        epoch = None if clock is None else clock.epoch
        access = None if epoch is None else epoch.accesses.get(frame.f_lasti)
        if access is None or access.code is not frame.f_code:  # `Watch.access`, cut short
            access = elements.access(frame)
        region: Region = self.buffer.state
        # Nothing has been written here, so no comparison can find a race: the read is only kept for later writes.
        if region.reads_only and region.unit == self.itemsize:  # as for most arguments; `note_read`, cut short
            seen = region.reads.get(address)
            if seen is None:
                region.reads[address] = access
            elif seen is access or (type(seen) is list and seen[-1] is access):
                elements.again()
            else:
                region.reads[address] = together(seen, access)
            return value
        if (
            region.settled  # this instruction has had ENOUGH races at this element
            and region.settled.get(address, NONE).get(access.instruction) is access.code
            and region.garbage is None  # every element has been written
            and not region.left  # no atomic has passed on what its thread knew
            and region.unit == self.itemsize
        ):
            seen = region.reads.get(address)
            if seen is access or (type(seen) is list and seen[-1] is access):
                elements.again()
            return value
        elements.note_read(self, address, access)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store an element, or many by a slice."""
        elements = self.elements
        if type(key) is int and 0 <= key < self._extent:  # `address_of`, cut short
            address = self.address + key * self._step
        else:
            found = address_of(self, key)
            if found is None:
                self.observer.write(self, key, value)
                return
            address = found
        if type(value) is ObservedRecord:
            value = elements.whole(value)
        frame, clock = sys._getframe(1), elements.cuda.current.seen
        epoch = None if clock is None else clock.epoch
        access = None if epoch is None else epoch.accesses.get(frame.f_lasti)
        if access is None or access.code is not frame.f_code:  # `Watch.access`, cut short
            access = elements.access(frame)
        region: Region = self.buffer.state
        if (
            region.settled  # the instruction has had enough races here, not all of them of equal values
            and (address, access.instruction) in region.differing
            and region.settled.get(address, NONE).get(access.instruction) is access.code
            and region.garbage is None
            and not region.left
            and region.unit == self.itemsize
            and access.epoch.thread.fenced_for_block is NOTHING  # else the store leaves what its thread has fenced
        ):
            self.raw[key] = value
            return
        elements.write_at(self, key, value, address, access)


class InputArray(WatchedArray):
    """An array that the kernel only reads (`inputs.py`): no access to it can race, so it checks only the indices."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        """Return an element."""
        # Never a view: `inputs_of` has seen that every subscript of the parameter has as many indices as it has axes.
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
        except (IndexError, TypeError):  # outside, or no integer: below it becomes a finding, or NumPy's own error
            pass
        return self.observer.read(self, key)


class OwnArray(WatchedArray):
    """A thread's local array, which no other thread reaches: its elements may be garbage, but no access can race.

    Kernels use local arrays most often, so this class has an even shorter path for arrays with one axis.
    """

    __slots__ = ("_first", "_garbage", "_written")

    def __init__(self, raw: np.ndarray, buffer: Buffer, observer: Any, address: int):
        """Stand for `raw`, whose shadow `buffer` has."""
        super().__init__(raw, buffer, observer, address)
        region: Region = buffer.state
        assert region.garbage is not None, "a local array begins without contents"
        if self._step != raw.itemsize:  # with gaps, or backwards: leave it to WatchedArray
            self._extent = 0
        self._first, self._garbage, self._written = address - region.start, region.garbage, bytes(raw.itemsize)

    def __getitem__(self, key: Any) -> Any:
        """Return an element, or a view."""
        if type(key) is int and 0 <= key < self._extent:
            size = self.itemsize
            at = self._first + key * size
            # Garbage in any byte goes the long way, which reports it.
            if self._garbage[at : at + size] == self._written:
                return self.raw[key]
        return WatchedArray.__getitem__(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store an element, or many by a slice."""
        if type(key) is int and 0 <= key < self._extent and type(value) is not ObservedRecord:
            size = self.itemsize
            at = self._first + key * size
            self._garbage[at : at + size] = self._written
            self.raw[key] = value
        else:
            WatchedArray.__setitem__(self, key, value)
