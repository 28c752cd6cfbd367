"""Give each array of a launch its shadow: the `Region` in which its accesses are recorded."""

from collections.abc import Sequence

import numpy as np

from normlab.sim.machine.memory import DYNAMIC_ADDRESS
from normlab.sim.machine.observed import Buffer, allocation_of, pointer
from normlab.sim.sanitizing.shadow import GARBAGE, Region
from normlab.sim.sanitizing.watch import Watch


class Shadows:
    """The regions of global memory; those of shared memory are kept with their blocks."""

    def __init__(self, watch: Watch, uninitialized: Sequence[np.ndarray]):
        """Start without memory. Arguments that share memory with `uninitialized` begin without contents."""
        self._watch, self._uninitialized = watch, uninitialized
        self.regions: dict[int, Region] = {}  # of global memory, by the allocation's address

    def add(self, buffer: Buffer) -> None:
        """Give a buffer its region: one per allocation of global memory, one per shared or local array."""
        array, block = buffer.array, None if buffer.block is None else self._watch.memory(buffer.block)
        unit = max(1, array.itemsize)
        if block is None:
            start = buffer.allocation.start
            region = buffer.state = self.regions.setdefault(start, Region(start, unit))
            region.units(buffer.address, unit)  # cut its units smaller if this array's dtype needs it
            self._empty(buffer, region)
            return
        dynamic = buffer.space == "shared" and buffer.address == DYNAMIC_ADDRESS
        if dynamic and block.dynamic is not None:  # arrays of all dtypes share the block's dynamic memory
            buffer.state = block.dynamic
            return
        region = buffer.state = Region(buffer.address, unit, shared=buffer.space == "shared")
        # All of the dynamic memory: an array of a smaller dtype reaches the bytes that this one's elements leave over.
        size = buffer.block.shared["dynamic"].nbytes if dynamic else array.nbytes
        region.garbage = bytearray([GARBAGE]) * size
        region.reads_only = False
        if region.shared:
            region.buffer = buffer
            block.regions.append(region)
        if dynamic:
            block.dynamic = region

    def _empty(self, buffer: Buffer, region: Region) -> None:
        """Mark the elements of an argument that count as never written."""
        start, size, _ = allocation_of(buffer.array)
        for array in self._uninitialized:
            if np.may_share_memory(array, buffer.array):
                # Two arrays of the host may share memory without a common owner: then take the whole argument.
                part = array if allocation_of(array)[0] == start else buffer.array
                if region.garbage is None:
                    region.garbage = bytearray(size)
                    region.reads_only = False
                region.never_written(pointer(part) - start, part.shape, part.strides, part.itemsize)
