"""The observer behind `sanitize`: it hears of everything that a launch does, and passes it on to its parts.

`watch` knows the running thread. `shadows` gives memory its shadow, `elements`, `accesses` and `copies` note what is
done to it, `meetings` what is ordered by then. `notes`, `races`, `remote`, `lanes` and `meetings` add to the findings.
"""

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from normlab.sim.machine.observe import Copy, Observer
from normlab.sim.machine.observed import Buffer, ObservedArray
from normlab.sim.machine.vector import Part
from normlab.sim.protocols import Block, Cuda, Thread
from normlab.sim.sanitizing.accesses import Accesses
from normlab.sim.sanitizing.arrays import InputArray, OwnArray, WatchedArray
from normlab.sim.sanitizing.collector import Collector
from normlab.sim.sanitizing.copies import Copies
from normlab.sim.sanitizing.elements import Elements
from normlab.sim.sanitizing.findings import Report
from normlab.sim.sanitizing.hangs import note_hang
from normlab.sim.sanitizing.lanes import Lanes
from normlab.sim.sanitizing.meetings import Meetings
from normlab.sim.sanitizing.notes import Notes
from normlab.sim.sanitizing.races import Races
from normlab.sim.sanitizing.remote import Remote
from normlab.sim.sanitizing.shadows import Shadows
from normlab.sim.sanitizing.watch import Watch


class Sanitizer(Observer):
    """Watches one launch."""

    array_class = WatchedArray

    def __init__(self, uninitialized: Sequence[np.ndarray], inputs: Container[str]):
        """Start before the launch.

        `uninitialized`: arguments that count as never written. `inputs`: parameters that the kernel only reads.
        """
        super().__init__()
        self._inputs = inputs
        self._collector = Collector()
        self._watch = Watch()
        self._shadows = Shadows(self._watch, uninitialized)
        self._notes = Notes(self._collector)
        self._races = Races(self._watch, self._collector)
        self.elements = Elements(self._watch, self._notes, self._races)
        self._accesses = Accesses(self._watch, self._notes, self.elements)
        self._copies = Copies(self._watch, self._notes, self._races, self._accesses)
        self._meetings = Meetings(self._watch, self._shadows, self._races, self._collector)
        self._remote = Remote(self._watch, self._collector)
        self._lanes = Lanes(self._watch, self._collector)

    def attach(self, cuda: Cuda) -> None:
        """Watch the launch of `cuda`, which is about to begin."""
        super().attach(cuda)
        self._watch.cuda = self.elements.cuda = cuda

    def report(self, kernel: str) -> Report:
        """Return all that was found; `kernel` has ended."""
        for region in self._shadows.regions.values():
            self._notes.settle(region)
        for memory in self._watch.blocks.values():
            for region in memory.regions:
                self._notes.settle(region)
        return self._collector.report(kernel)

    # --- memory ------------------------------------------------------------------------------------------------------

    def adopt(self, value: Any, name: str) -> Any:
        """Return what a kernel sees of an argument that it calls `name`."""
        array = super().adopt(value, name)
        return InputArray(array.raw, array.buffer, self, array.address) if name in self._inputs else array

    def made(self, array: np.ndarray, name: str, space: str, address: int, block: Any) -> ObservedArray:
        """Return a new shared or local array, in the memory of `block`, as the kernel sees it."""
        made = super().made(array, name, space, address, block)
        return OwnArray(array, made.buffer, self, address) if space == "local" else made

    def add(self, buffer: Buffer) -> None:
        """Give memory its shadow."""
        self._shadows.add(buffer)

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Return `array[key]`, which is not the usual access."""
        return self._accesses.read(array, key)

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Do `array[key] = value`, which is not the usual access."""
        self._accesses.write(array, key, value)

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Return where the running thread is to do its atomic operation: somewhere else if the index is bad."""
        return self._accesses.atomic(array, key)

    def exchange(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Do as `atomic`, for an operation whose new value does not depend on the old one."""
        return self._accesses.exchange(array, key)

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Return `width` neighbouring elements, loaded by one instruction."""
        return self._accesses.read_vector(array, key, width)

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Store neighbouring elements by one instruction."""
        self._accesses.write_vector(array, key, values)

    def begin_copy(self, target: Part, source: Part) -> Copy | None:
        """Note that the running thread starts an asynchronous copy."""
        return self._copies.begin(target, source)

    def end_copy(self, copy: Copy) -> None:
        """Note that the running thread has waited for a copy."""
        self._copies.end(copy)

    def remote(self, array: ObservedArray, key: Any, operation: str) -> ObservedArray:
        """Note that a thread reaches an array in another block's shared memory."""
        return self._remote.reach(array, key, operation)

    def refuse_remote(self, array: ObservedArray, key: Any, operation: str) -> bool:
        """Note an access to the memory of a block that has ended, and go on without it."""
        self._remote.refuse(array, key, operation)
        return True

    # --- threads -----------------------------------------------------------------------------------------------------

    def meeting(self, group: list[Any]) -> None:
        """Order lanes by a warp operation."""
        self._meetings.warp(group)
        self._lanes.meet(group[0])

    def fence(self, thread: Thread, scope: str) -> None:
        """Let the thread's later atomics pass on what it has done and knows."""
        self._meetings.fence(thread, scope)

    def barrier(self, block: Block, arrived: list[Any]) -> None:
        """Order the threads of a block."""
        self._meetings.barrier(block, arrived)

    def team_meets(self, number: int, group: list[Any]) -> None:
        """Order the threads that meet at a team's barrier."""
        self._meetings.team(number, group)

    def cluster_arrive(self, thread: Thread) -> None:
        """Note what a thread brings to the cluster's barrier."""
        self._meetings.cluster_arrive(thread)

    def cluster_meets(self, blocks: list[Any]) -> None:
        """Order the threads of a cluster."""
        self._meetings.cluster(blocks)

    def cluster_wait(self, thread: Thread) -> None:
        """Let a thread know what the cluster's threads had done before they arrived."""
        self._meetings.cluster_wait(thread)

    def grid_sync(self, blocks: list[Any]) -> None:
        """Order everything."""
        self._meetings.grid_sync(blocks)

    def returned(self, thread: Thread) -> None:
        """Keep the thread for a barrier that may miss it."""
        self._meetings.returned(thread)

    def block_done(self, block: Block) -> None:
        """Say what is wrong with a block's shared memory, and forget it."""
        memory = self._watch.blocks.pop(block)
        self._meetings.block_done(memory)
        for region in memory.regions:
            self._notes.settle(region)
        self._remote.end(block, memory)
        memory.clock.threads.clear()

    def hangs(self, blocks: list[Any]) -> None:
        """Note where the threads wait, and for what."""
        note_hang(blocks, self._watch, self._collector)

    def refuse_mask(self, thread: Thread, operation: str, mask: int) -> bool:
        """Note a lane that its own mask leaves out, and let it go on."""
        self._lanes.outside_mask(thread, operation, mask)
        return True

    def refuse_shuffle(self, thread: Thread, source: int, why: str) -> bool:
        """Note a lane that reads from one that gives nothing, and let it go on."""
        self._lanes.from_nowhere(thread, source, why)
        return True
