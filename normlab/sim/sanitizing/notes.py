"""Report mistakes that one access makes by itself: bad indices, and reads of garbage."""

from typing import Any

from normlab.sim.machine.observed import Buffer, ObservedArray
from normlab.sim.sanitizing.advice import against_garbage, against_index
from normlab.sim.sanitizing.bounds import index_of, positions_of
from normlab.sim.sanitizing.clocks import Access
from normlab.sim.sanitizing.collector import Collector, act_of
from normlab.sim.sanitizing.findings import Finding
from normlab.sim.sanitizing.literals import literal_indices
from normlab.sim.sanitizing.shadow import Region


class Notes:
    """Adds bad indices and reads of garbage to the findings."""

    def __init__(self, collector: Collector):
        """Add to `collector`."""
        self._collector = collector

    def outside(self, operation: str, array: ObservedArray, key: Any, access: Access) -> bool:
        """Report an index that is negative or out of bounds; return whether it is out of bounds."""
        outside = False
        positions, name, whole = positions_of(array, key), array.buffer.name, array.buffer.array
        # A row, a slice or an array in a field: the advice must not name a shape of the whole array then. A field's
        # column has the strides of its records, and their extents.
        part = (array.shape, array.strides) != (whole.shape, whole.strides)
        for axis, position, extent in positions:
            if 0 <= position < extent:
                continue
            kind = "negative-index" if -extent <= position < 0 else "out-of-bounds"
            # `x[-1]` is meant as Python means it. A computed index that comes out negative is a mistake.
            if kind == "negative-index" and position in literal_indices(*access[1:]):
                continue
            outside = outside or kind == "out-of-bounds"

            # The defaults keep the loop's variables of this axis.
            def make(kind: str = kind, wrong: tuple = (axis, position, extent)) -> Finding:
                return Finding(
                    kind,
                    name,
                    array.buffer.space,
                    tuple(place for _, place, _ in positions),
                    act_of(operation, access),
                    None,
                    against_index(kind, name, part, *wrong),
                )

            # The event has no index: a loop that runs past the end is one mistake, and its first index the example.
            self._collector.add((kind, name, id(access.code), access.instruction), access.code, make)
        return outside

    def garbage(self, operation: str, buffer: Buffer, address: int, access: Access) -> None:
        """Report a read of an element that was never written: at once, or in `settle` if other threads reach it."""
        region: Region = buffer.state
        if not region.shared:
            self._note_garbage(operation, buffer, address, access)
            return
        # Only a copy under way is a write of an element that is garbage still: the access races with it.
        if address in region.writes:
            return
        # Another thread may still write the element without being ordered with the read: then the race is the finding.
        pending = region.pending.setdefault(address, [])
        # A loop that polls the element repeats one access, which is kept once.
        if not pending or pending[-1][1] is not access:
            pending.append((operation, access, buffer))

    def settle(self, region: Region) -> None:
        """Report the pending reads of garbage; `Races` has removed those that a write of another thread races with."""
        for address, reads in region.pending.items():
            for operation, access, buffer in reads:
                self._note_garbage(operation, buffer, address, access)
        region.pending.clear()

    def _note_garbage(self, operation: str, buffer: Buffer, address: int, access: Access) -> None:
        def make() -> Finding:
            first = act_of(operation, access)
            advice = against_garbage(buffer.name, buffer.space, operation, first.line)
            index = index_of(buffer, address)
            return Finding("uninitialized-read", buffer.name, buffer.space, index, first, None, advice)

        # By the instruction and not by the element: an array read before it is filled is one mistake.
        event = "uninitialized-read", buffer.name, id(access.code), access.instruction
        self._collector.add(event, access.code, make)
