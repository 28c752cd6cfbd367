"""Record asynchronous copies: each is a write of its target that lasts until its thread has waited for it."""

import sys

import numpy as np

from normlab.sim.machine.observe import Copy
from normlab.sim.machine.vector import Part, neighbours
from normlab.sim.sanitizing.accesses import Accesses
from normlab.sim.sanitizing.bounds import address_of
from normlab.sim.sanitizing.clocks import Access, CopyClock, ThreadClock
from normlab.sim.sanitizing.notes import Notes
from normlab.sim.sanitizing.races import Races
from normlab.sim.sanitizing.shadow import Region
from normlab.sim.sanitizing.watch import Flight, Watch


class Copies:
    """Records the beginning and the end of each asynchronous copy."""

    def __init__(self, watch: Watch, notes: Notes, races: Races, accesses: Accesses):
        """Start with no copy under way."""
        self._watch, self._notes, self._races, self._accesses = watch, notes, races, accesses
        self._copiers: dict[ThreadClock, CopyClock] = {}  # thread → the clock of what it has under way

    def begin(self, target: Part, source: Part) -> Copy | None:
        """Record the reads of the source, and a write of the target that no barrier orders from now on.

        Return the copy, or None if its target is out of bounds.
        """
        array, key, width = target
        # The source is read now, as the simulator's copy does; a GPU may read it later.
        values = np.asarray(self._accesses.read_vector(*source)).view(array.raw.dtype)
        access = self._watch.access(sys._getframe(1))
        # Reports call these writes "copy"; the element's shadow cannot tell them from stores.
        self._races.starts_copy(access)
        indices = [(*key[:-1], key[-1] + part) for part in range(width)]
        addresses = [address for index in indices if (address := address_of(array, index)) is not None]
        if len(addresses) < width:
            for index in indices:
                self._notes.outside("copy", array, index, access)
            return None
        thread = access.epoch.thread
        if thread not in self._copiers:
            self._copiers[thread] = CopyClock(thread)
        # Later accesses are compared with this one, of a clock that nothing orders; earlier accesses with the thread's
        # own.
        under_way = access._replace(epoch=self._copiers[thread].now())
        flight = Flight(array.buffer, addresses, under_way)
        self._write_all(flight, access, under_way)
        thread.end_epoch()  # the next read must be compared again, even if it equals an earlier one
        self._watch.memory(array.buffer.block).copies[id(flight)] = flight
        return Copy(neighbours(array.raw, key, width), values, flight)

    def end(self, copy: Copy) -> None:
        """Record that the copy's write is complete, because its thread has waited for it."""
        flight: Flight = copy.seen
        region: Region = flight.buffer.state
        # From here on the block's barriers may forget the write like any other.
        del self._watch.memory(flight.buffer.block).copies[id(flight)]
        for unit in flight.units():
            # The write under way goes, and below a write by the waiting thread takes its place, which barriers order.
            region.arrive(unit, flight.under_way)
        for address in flight.addresses:
            region.written(address, flight.buffer.array.itemsize)
        now = self._watch.clock(self._watch.cuda.current).now()
        self._write_all(flight, flight.under_way._replace(epoch=now))

    def _write_all(self, flight: Flight, access: Access, under_way: Access | None = None) -> None:
        """Record `access` as a write of the copy's target; compare later accesses with `under_way`, if given."""
        for unit in flight.units():
            earlier = flight.buffer.state.write(unit, access, under_way)
            if earlier is not None:
                self._races.note("write", flight.buffer, unit, access, earlier)
