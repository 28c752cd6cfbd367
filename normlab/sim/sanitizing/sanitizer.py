"""Define the observer of `sanitize`: the simulator calls it at every event of a launch, and its parts do the work."""

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from normlab.sim.language.turns import TurnMarks
from normlab.sim.machine.observe import Observer
from normlab.sim.machine.observed import ObservedArray
from normlab.sim.protocols import Block, Cuda, Thread
from normlab.sim.sanitizing.accesses import Accesses
from normlab.sim.sanitizing.arrays import InputArray, OwnArray, WatchedArray
from normlab.sim.sanitizing.collector import Collector
from normlab.sim.sanitizing.copies import Copies
from normlab.sim.sanitizing.elements import Elements
from normlab.sim.sanitizing.findings import Report
from normlab.sim.sanitizing.hangs import note_hang
from normlab.sim.sanitizing.lanes import Lanes
from normlab.sim.sanitizing.locks import Locks
from normlab.sim.sanitizing.meetings import Meetings
from normlab.sim.sanitizing.notes import Notes
from normlab.sim.sanitizing.races import Races
from normlab.sim.sanitizing.remote import Remote
from normlab.sim.sanitizing.shadows import Shadows
from normlab.sim.sanitizing.watch import Watch


class Sanitizer(Observer):
    """Watches one launch."""

    array_class = WatchedArray
    # Counters in the kernel's loops: `Meetings` compares in which turns threads come to a barrier.
    source_marks = (TurnMarks,)

    def __init__(self, uninitialized: Sequence[np.ndarray], inputs: Container[str]):
        """Make the parts; the launch has not begun.

        `uninitialized`: arguments that count as never written. `inputs`: parameters that the kernel only reads.
        """
        super().__init__()
        self._inputs = inputs
        self._collector = Collector()
        self._watch = Watch()
        self._shadows = Shadows(self._watch, uninitialized)
        self._notes = Notes(self._collector)
        self._races = Races(self._watch, self._collector)
        self._locks = Locks(self._collector)
        self.elements = Elements(self._watch, self._notes, self._races, self._locks)
        self._accesses = Accesses(self._watch, self._notes, self.elements)
        self._copies = Copies(self._watch, self._notes, self._races, self._accesses)
        self._meetings = Meetings(self._watch, self._shadows, self._races, self._locks, self._collector)
        self._remote = Remote(self._watch, self._collector)
        self._lanes = Lanes(self._watch, self._collector)
        # Most events concern one part alone. An attribute of the object hides the method that the class inherits from
        # Observer, so the simulator calls the part directly. A method that only passed the event on would cost every
        # access one call more.
        vars(self).update(
            add=self._shadows.add,
            read=self._accesses.read,
            write=self._accesses.write,
            poll=self._accesses.poll,
            atomic=self._accesses.atomic,
            exchange=self._accesses.exchange,
            updated=self._accesses.updated,
            read_vector=self._accesses.read_vector,
            write_vector=self._accesses.write_vector,
            begin_copy=self._copies.begin,
            end_copy=self._copies.end,
            remote=self._remote.reach,
            fence=self._meetings.fence,
            barrier=self._meetings.barrier,
            team_meets=self._meetings.team,
            cluster_arrive=self._meetings.cluster_arrive,
            cluster_meets=self._meetings.cluster,
            cluster_wait=self._meetings.cluster_wait,
            grid_sync=self._meetings.grid_sync,
            returned=self._meetings.returned,
        )

    def attach(self, cuda: Cuda) -> None:
        """Watch the launch of `cuda`, which is about to begin."""
        super().attach(cuda)
        self._watch.cuda = self.elements.cuda = cuda

    def report(self, kernel: str) -> Report:
        """Return all findings of the launch of `kernel`, which has ended."""
        # A read of memory that was never written waits as a note until no write can race with it any more.
        for region in self._shadows.regions.values():
            self._notes.settle(region)
        # Blocks that a deadlock has left in the middle: those that ended have settled already.
        for memory in self._watch.blocks.values():
            for region in memory.regions:
                self._notes.settle(region)
        return self._collector.report(kernel)

    # --- memory ------------------------------------------------------------------------------------------------------

    def adopt(self, value: Any, name: str) -> Any:
        """Return what a kernel sees of an argument that it calls `name`."""
        # An array in a tuple is named `name[0]` and is never an input: `inputs_of` knows whole parameters only.
        array = super().adopt(value, name)
        return InputArray(array.raw, array.buffer, self, array.address) if name in self._inputs else array

    def made(self, array: np.ndarray, name: str, space: str, address: int, block: Any) -> ObservedArray:
        """Return a new shared or local array, in the memory of `block`, as the kernel sees it."""
        # Kept of `made` is its buffer: `Shadows.add` has given it the region that an OwnArray looks into.
        made = super().made(array, name, space, address, block)
        return OwnArray(array, made.buffer, self, address) if space == "local" else made

    def refuse_remote(self, array: ObservedArray, key: Any, operation: str) -> bool:
        """Report an access to the memory of a block that has ended; return True, so that the access is skipped."""
        self._remote.refuse(array, key, operation)
        return True

    # --- threads -----------------------------------------------------------------------------------------------------

    def meeting(self, group: list[Any]) -> None:
        """Record that a warp operation orders its lanes."""
        self._meetings.warp(group)
        # The shuffle is answered after this: `refuse_shuffle` then knows whether the lane's mask is reported already.
        self._lanes.meet(group[0])

    def block_done(self, block: Block) -> None:
        """Report mistakes in the use of an ended block's shared memory, and free what is kept of the block."""
        memory = self._watch.blocks.pop(block)
        self._meetings.block_done(memory)
        for region in memory.regions:
            self._notes.settle(region)
        self._remote.end(block, memory)
        # The threads' clocks point to the block's clock and back. Without this cut, their memory would stay until
        # Python's next search for cycles. Last, because `Remote.end` asks these clocks.
        memory.clock.threads.clear()

    def hangs(self, blocks: list[Any]) -> None:
        """Report where the threads wait, and for what."""
        note_hang(blocks, self._watch, self._collector)

    def refuse_mask(self, thread: Thread, operation: str, mask: int) -> bool:
        """Report a lane that its own mask leaves out; return True, so that the lane goes on."""
        self._lanes.outside_mask(thread, operation, mask)
        return True

    def refuse_shuffle(self, thread: Thread, source: int, why: str) -> bool:
        """Report a lane that reads from a lane that gives no value; return True, so that the reading lane goes on."""
        self._lanes.from_nowhere(thread, source, why)
        return True
