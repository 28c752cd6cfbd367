"""Define the observer of `trace`: it logs the accesses of single lanes, which the tally groups into warps' requests.

`lanes` gives what counts in its place if the vectorised engine runs the launch (lanes.py). A trace keeps the first and
the costliest request of every line, and all requests of the lines that `keep` names.
"""

import sys
from ast import NodeTransformer
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from normlab.sim.language.paths import PATHS, PathMarks, Paths, calls_of
from normlab.sim.language.source import Line, line_of
from normlab.sim.machine.observe import Copy, Observer, kernel_frame
from normlab.sim.machine.observed import Buffer, ObservedArray, offset_of
from normlab.sim.machine.shuffles import SOURCES, VOTES
from normlab.sim.machine.vector import Part, instructions
from normlab.sim.tracing.flows import Flows
from normlab.sim.tracing.heat import Heat
from normlab.sim.tracing.lanes import LaneRecorder
from normlab.sim.tracing.log import Log
from normlab.sim.tracing.sites import RANK_SPACING, Site, Sites, TracedArray
from normlab.sim.tracing.tally import Tally, Warps

# A log of this length is counted before the launch ends, and forgotten, so that memory does not grow with the run time.
# It grows with the kernel's source, its arrays, and the accesses that a warp makes between two barriers.
LONG = 1 << 18  # accesses: 8 MB


class Recorder(Observer):
    """Counts the requests, synchronisations and flows of one launch."""

    array_class: type[ObservedArray] = TracedArray
    source_marks: tuple[type[NodeTransformer], ...] = (PathMarks,)
    follows_flows = True  # False in a subclass that shows no tree of values (course/costs.py), to save time
    paths: Paths  # from `attach` on

    def __init__(self, keep: Collection[int]):
        """Keep all requests of the lines numbered `keep`."""
        super().__init__()
        self._keep = keep
        self._log = Log()
        self._long = LONG
        self._ended: list[bool] = []  # by number of the warp
        self.note: Any = None  # logs an access, if the scheduler runs the launch

    def attach(self, cuda: Any) -> None:
        """Number the paths of the launch of `cuda`."""
        super().attach(cuda)
        self.paths = Paths(cuda)
        self._begin(self.paths.warps)
        # After `_begin`, because the function holds what `_begin` makes. Before the launch's arrays are made, because
        # each of them takes `note` along.
        self.note = self._recording()

    def _begin(self, warps: Warps) -> None:
        """Start all counters at 0."""
        # Called more than once for some launches: the vectorised engine may restart one, or leave it to the scheduler
        # in the middle. Nothing that an attempt has counted may stay.
        self.heat: dict[tuple, Heat] = {}
        self.flows = Flows()
        self._sites: list[Site] = []
        self._sites_of: dict[tuple, Sites] = {}
        self._site_numbers: dict[tuple, int] = {}
        self.tally = Tally(self._keep, self._sites, warps)
        self._lanes: LaneRecorder | None = None  # None: the scheduler runs the launch, and the log has its accesses

    def lanes(self, cuda: Any, cluster: int) -> LaneRecorder:
        """Return what counts for this recorder, from 0 on, what the vectorised engine tells of the launch of `cuda`."""
        made = LaneRecorder(self, cuda.gridDim, cuda.blockDim, cluster)
        self._count_for(made)
        return made

    def _count_for(self, lanes: LaneRecorder) -> None:
        """Start all counters at 0, for what the vectorised engine tells `lanes`."""
        self._begin(lanes.warps)
        if self.follows_flows:
            # In place of the first block, which the vectorised engine has no object for: the flows only ask whether a
            # block is watched.
            self.flows.begin(lanes, lanes.threads)
        self._lanes = lanes

    def marks(self, in_kernel: bool) -> dict[str, Any]:
        """Return the object that the kernel's code tells of turns of loops."""
        return {PATHS: self.paths}

    # --- accesses ----------------------------------------------------------------------------------------------------

    def add(self, buffer: Buffer) -> None:
        """Count the accesses to an array together with those to the arrays of its name in other blocks."""
        # Blocks that make their shared arrays in the same order make each at the same address. Two arrays of one block
        # that agree in name and shape differ in it.
        key = buffer.space, buffer.name, buffer.array.shape, buffer.address
        if key not in self.heat:
            self.heat[key] = Heat(buffer)
        buffer.state = self.heat[key]

    def made(self, array: np.ndarray, name: str, space: str, address: int, block: Any) -> Any:
        """Return a new shared array as a traced array, and a local array as it is."""
        # A compiler puts a local array into registers where it can. The source does not tell whether its accesses are
        # requests, so none is counted.
        return array if space == "local" else super().made(array, name, space, address, block)

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Log an atomic operation."""
        self.note(array, key, self.sites(array, "atom", array.itemsize))
        return array.raw, key

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Log a load of `width` neighbours by one instruction."""
        values = super().read_vector(array, key, width)
        # One request of `width` elements per lane, as one instruction makes it: 16 bytes per lane are four sectors for
        # eight lanes.
        self.note(array, key, self.sites(array, "ld", array.itemsize * width))
        return values

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Log a store of neighbours by one instruction."""
        super().write_vector(array, key, values)
        self.note(array, key, self.sites(array, "st", array.itemsize * len(values)))

    def begin_copy(self, target: Part, source: Part) -> Copy | None:
        """Log an asynchronous copy: a request of global memory, and one of shared memory, as if it arrived at once."""
        copy = super().begin_copy(target, source)
        for array, key, width in (source, target):
            # One instruction moves 16 bytes per thread at most, so a longer copy is several requests.
            for first, count in instructions(width, array.itemsize):
                place = (*key[:-1], key[-1] + first)
                self.note(array, place, self.sites(array, "ldgsts", array.itemsize * count))
        return copy

    def remote(self, array: ObservedArray, key: Any, operation: str) -> ObservedArray:
        """Return an array in the shared memory of another block, so that its accesses are counted apart."""
        own = array.buffer
        # The hardware counts a load from the block's own memory as one of shared memory, also if it names its own rank.
        if operation == "read" and own.block is self.cuda.current.block:
            return array
        # Each block's memory gets addresses of its own, so that requests to two blocks never share a sector.
        rank = own.block.cluster.blocks.index(own.block)
        # A buffer of its own, because Nsight counts distributed shared memory under names of its own.
        buffer = Buffer(own.name, "dshared", own.array, own.address, block=own.block)
        self.add(buffer)
        return TracedArray(array.raw, buffer, self, array.address + rank * RANK_SPACING)

    def sites(self, array: ObservedArray, operation: str, size: int) -> Sites:
        """Return the sites at which instructions do `operation` on `size` bytes of `array`."""
        # By memory and not by array: a kernel may make views of the same memory again in every turn of a loop.
        key = array.buffer.state, operation, size
        if key not in self._sites_of:
            self._sites_of[key] = Sites(operation, size, array.buffer.space == "shared")
        return self._sites_of[key]

    def _recording(self) -> Callable[..., int]:
        """Return the function that logs every access: a closure, because Python reaches its variables fastest."""
        cuda, flows, all_sites, append = self.cuda, self.flows, self._sites, self._log.append

        def record(array: ObservedArray, key: Any, sites: Sites, number: int | None = None) -> int:
            """Log the running thread's access to `array[key]`; return its site, which the frames show if need be."""
            if number is None:
                frame = sys._getframe(2)  # the kernel's, for an access that the array's method tells
                site: Any = frame.f_lasti
                # In a device function, or more frames of the simulator away from the kernel, as for an atomic.
                if frame.f_code is not self.kernel_code:
                    frame, site = self._site_further_out(frame)
                number = sites.get(site)
                if number is None:
                    number = sites[site] = self._site_number(sites, frame, array)
            # The usual accesses, to an element of one or two dimensions, without a call: `offset_of` takes far longer,
            # and this runs for every access of every thread.
            try:
                if key.__class__ is tuple:
                    row, column = key
                    rows, columns = array.strides
                    if row < 0 or column < 0:
                        raise ValueError
                    address = array.address + row * rows + column * columns
                else:
                    index = key if key.__class__ is int else int(key)
                    if index < 0:
                        raise ValueError
                    (stride,) = array.strides
                    address = array.address + index * stride
            except (ValueError, TypeError):  # not the usual access: other dimensions, negative indices, slices
                offset = offset_of(array, key)
                if offset is None:
                    self._record_slice(array, key, sites.operation, number)
                    return number
                address = array.address + offset
            thread = cuda.current
            trail = thread.seen
            append((number, trail.path, trail.slot, address))
            # Flows are followed for one block only, so all other blocks pay one comparison. It is the first block, in
            # which the slot is the thread's number.
            if sites.shared and thread.block is flows.block:
                flows.access(trail.slot, array.buffer.name, address, sites.operation, all_sites[number].line)
            return number

        return record

    def _site_further_out(self, frame: Any) -> tuple[Any, Any]:
        """Return the frame of the kernel, or of a device function that it has called, and a key of the site there."""
        frame = found = kernel_frame(frame)
        if frame.f_code is self.kernel_code:
            return frame, frame.f_lasti
        site: tuple[int, ...] = id(frame.f_code), frame.f_lasti
        # The calls belong to the key: the compiler inlines a device function, so each call has instructions of its own.
        while (frame := frame.f_back).f_code is not self.kernel_code:
            site = (*site, frame.f_lasti)
        return found, (*site, frame.f_lasti)

    def _site_number(self, sites: Sites, frame: Any, array: ObservedArray) -> int:
        """Return the number of the site where `frame` stands."""
        # By position in the source, because the interpreter has several instructions for some: it compiles a loop's
        # condition twice.
        place = *calls_of(frame), array.buffer.state, sites.operation, sites.size
        if place not in self._site_numbers:
            self._site_numbers[place] = len(self._sites)
            # The compiler loads a complex number as two floats, by two instructions at neighbouring addresses.
            parts = 2 if array.raw.dtype.kind == "c" else 1
            line = line_of(frame.f_code, frame.f_lasti)
            buffer = array.buffer
            made = Site(
                line, sites.operation, sites.size // parts, buffer.state, buffer.address, buffer.allocation, parts
            )
            # The same object at two neighbouring numbers: that is how the tally knows a second part (tally.py).
            self._sites += [made] * parts
        return self._site_numbers[place]

    def _record_slice(self, array: ObservedArray, key: Any, operation: str, number: int) -> None:
        """Log an access to every element of a slice, as a loop makes them."""
        view = array.viewed(np.asarray(array.raw)[key])
        sites = self.sites(view, operation, view.itemsize)
        for index in np.ndindex(view.shape):
            # With the slice's own site, because all these accesses come from one place of the source.
            self.note(view, index, sites, number)

    # --- threads -----------------------------------------------------------------------------------------------------

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Count a barrier, at the line of the first thread."""
        self.tally.counts_of(_stopped_at(arrived[0])).barriers += 1
        if block is self.flows.block:
            self.flows.barrier(_numbers(arrived))
        # All live threads of the block stand here, so no request of its warps can get another lane.
        self._count_if_long(block.warps)

    def team_meets(self, number: int, group: list[Any]) -> None:
        """Count a team's barrier, at the line of the first thread."""
        line = _stopped_at(group[0])
        self.tally.counts_of(line).barriers += 1
        if group[0].block is self.flows.block:
            self.flows.meeting(_numbers(group), line)
        block = group[0].block
        waiting = {thread for team in block.at_team.values() for thread in team}  # the group, and other teams
        self._count_if_long([warp for warp in block.warps if waiting.issuperset(warp.live)])

    def meeting(self, group: list[Any]) -> None:
        """Count a warp operation, at the line of its first lane."""
        line, operation = _stopped_at(group[0]), group[0].operation
        counts = self.tally.counts_of(line)
        if operation in SOURCES:
            counts.shuffles += 1
        elif operation in VOTES:
            counts.votes += 1
        else:  # a syncwarp: the simulator tells of no activemask, at which no lane waits for another
            counts.warp_syncs += 1
        if group[0].block is self.flows.block:
            self.flows.meeting(_numbers(group), line, _moves(group))

    def cluster_meets(self, blocks: list[Any]) -> None:
        """Count a cluster's barrier, at the line of the first thread that waits there."""
        first, *_ = (thread for block in blocks for thread in block.at_cluster)
        self.tally.counts_of(_stopped_at(first)).cluster_syncs += 1
        # Of a block that arrives and waits in two steps, threads may still run between them: such a block has not met.
        whole = [block for block in blocks if len(block.at_cluster) == block.live_count]
        if self.flows.block in whole:
            self.flows.barrier(_numbers(self.flows.block.at_cluster))
        self._count_if_long([warp for block in whole for warp in block.warps])

    def grid_sync(self, blocks: list[Any]) -> None:
        """Count a grid sync, at the line of the first thread."""
        waiting = [thread for block in blocks for thread in block.at_grid_sync]
        self.tally.counts_of(_stopped_at(waiting[0])).grid_syncs += 1
        # Even a short log: every live thread of the grid stands here, so all of it is complete.
        self.count()

    def block_begins(self, block: Any) -> None:
        """Give every thread of a new block its trail."""
        self.paths.begin(block)
        self._ended += [False] * len(block.warps)
        if self.follows_flows:
            self.flows.begin(block, len(block.threads))

    def returned(self, thread: Any) -> None:
        """Pack a long log, and count it when a warp has ended."""
        self._log.pack_if_long()
        # Only then are the warp's requests complete: until its last lane returns, a lane may still join one.
        if not thread.warp.live:
            self._ended[thread.seen.slot // 32] = True
            self._count_if_long([])

    # --- requests ----------------------------------------------------------------------------------------------------

    def _count_if_long(self, standing: list[Any]) -> None:
        """Count the accesses in a long log of warps that have ended, or that are `standing` at a barrier.

        Of the other warps, some lanes may not have come to a request yet that others have made.
        """
        # Counting pays for many accesses at once: NumPy's calls cost the same for ten as for a thousand.
        if len(self._log) < self._long:
            return
        table = self._log.take()
        whole = np.array(self._ended, bool)
        whole[[warp.threads[0].seen.slot // 32 for warp in standing]] = True
        chosen = whole[table[:, 2] // 32]
        self.tally.add(table[chosen])
        self._log.put_back(table[~chosen])
        # What has to stay may be most of the log. Doubling keeps the cost of looking at it again linear.
        self._long = max(LONG, 2 * len(self._log))

    def count(self) -> None:
        """Count all accesses in the log. No warp may be in the middle of a request."""
        if self._lanes is not None:
            self._lanes.count()
        else:
            self.tally.add(self._log.take())


def _numbers(threads: list[Any]) -> list[int]:
    """Return the numbers in their block of threads of the first block."""
    return [thread.seen.slot for thread in threads]


def _moves(group: list[Any]) -> list[tuple[int, int]]:
    """Return between which threads of the first block a warp operation moves values: a shuffle does."""
    operation = group[0].operation
    if operation not in SOURCES:
        return []
    first, lanes = group[0].seen.slot - group[0].lane, {thread.lane for thread in group}
    moves = ((SOURCES[operation](thread.lane, thread.given[1]), thread.lane) for thread in group)
    # A lane that reads from a lane outside the group gets no value: the simulator raises ShuffleError next.
    return [(first + source, first + target) for source, target in moves if source in lanes]


def _stopped_at(thread: Any) -> Line:
    frame = kernel_frame(thread.frame)
    return line_of(frame.f_code, frame.f_lasti)
