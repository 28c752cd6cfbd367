"""The observer behind `trace`: it gathers what lanes do one by one into the requests of their warp, and counts them.

A request is complete when all lanes have given their address, or when the warp has passed a barrier or ended.
Then it is counted and forgotten, but for the first and the costliest of every line, and for those of the lines whose
requests were asked for: memory grows with the kernel's source, its arrays and one warp's time between two barriers.
"""

import sys
from array import array as compact
from collections.abc import Collection
from types import CodeType
from typing import Any

import numpy as np

from normlab.sim.observe import KERNEL_MARK, Buffer, ObservedArray, Observer, kernel_frame, offset_of
from normlab.sim.paths import Paths
from normlab.sim.tracing.counts import Counts
from normlab.sim.tracing.flows import Flows
from normlab.sim.tracing.model import fewest_wavefronts, sectors, wavefronts
from normlab.sim.tracing.request import Line, Request, line_of
from normlab.sim.warp import SOURCES

VOTES = ("all_sync", "any_sync", "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync")


class Heat:
    """How often each element of an array was loaded and stored (atomics do both)."""

    __slots__ = ("itemsize", "loads", "name", "shape", "space", "stores")

    def __init__(self, buffer: Buffer):
        """Start at nothing for the array of `buffer`."""
        self.name, self.space, self.shape = buffer.name, buffer.space, buffer.array.shape
        self.itemsize = buffer.array.itemsize
        self.loads, self.stores = (compact("I", bytes(4 * buffer.array.size)) for _ in range(2))

    def counted(self, stores: bool) -> np.ndarray:
        """Return the counts in the shape of the array."""
        return np.frombuffer(self.stores if stores else self.loads, np.uint32).reshape(self.shape)


class Pending:
    """A request that waits for more lanes."""

    __slots__ = ("addresses", "array", "instruction", "lanes", "mask", "operation", "size")

    def __init__(self, array: ObservedArray, operation: str, size: int, instruction: tuple[CodeType, int]):
        """Wait for the first lane."""
        self.array, self.operation, self.size, self.instruction = array, operation, size, instruction
        self.mask = 0
        self.lanes: list[int] = []
        self.addresses = compact("q")


class Kept:
    """The requests of one kind on one line that a trace can show: the first, the costliest, or all."""

    __slots__ = ("all", "first", "worst", "worst_cost")

    def __init__(self, everything: bool):
        """Keep the first and the costliest, and the rest if `everything`."""
        self.first: Request | None = None
        self.worst: Request | None = None
        self.worst_cost = -1
        self.all: list[Request] | None = [] if everything else None


class Recorder(Observer):
    """Counts the requests, synchronisations and flows of one launch."""

    paths: Paths

    def __init__(self, keep: Collection[int]):
        """Keep all requests of the lines numbered `keep`."""
        super().__init__()
        self.lines: dict[Line, Counts] = {}
        self.kept: dict[tuple[Line, str, str, str], Kept] = {}  # (line, space, operation, array)
        self.heat: dict[tuple[str, str, tuple[int, ...]], Heat] = {}
        self.flows = Flows()
        self._keep = keep

    def attach(self, cuda: Any) -> None:
        """Number the paths of the launch of `cuda`."""
        super().attach(cuda)
        self.paths = Paths(cuda)

    # --- accesses ----------------------------------------------------------------------------------------------------

    def add(self, buffer: Buffer) -> None:
        """Count the accesses to an array together with those to the arrays of its name in other blocks."""
        if buffer.space == "local":  # registers, or a memory of its own behind L1
            return
        key = buffer.space, buffer.name, buffer.array.shape
        if key not in self.heat:
            self.heat[key] = Heat(buffer)
        buffer.state = self.heat[key]

    def read(self, array: ObservedArray, key: Any) -> Any:
        """Note a load of one element; a view costs nothing."""
        value = array.raw[key]
        if isinstance(value, (np.ndarray, np.void)):
            return self.value_of(array, key, value)
        self._note(array, key, "ld")
        return value

    def write(self, array: ObservedArray, key: Any, value: Any) -> None:
        """Note a store of one element, or of as many as a slice has."""
        super().write(array, key, value)
        self._note(array, key, "st")

    def atomic(self, array: ObservedArray, key: Any) -> tuple[np.ndarray, Any]:
        """Note an atomic."""
        self._note(array, key, "atom")
        return array.raw, key

    def read_vector(self, array: ObservedArray, key: tuple, width: int) -> Any:
        """Note a load of `width` neighbours by one instruction."""
        values = super().read_vector(array, key, width)
        self._note(array, key, "ld", width)
        return values

    def write_vector(self, array: ObservedArray, key: tuple, values: tuple) -> None:
        """Note a store of neighbours by one instruction."""
        super().write_vector(array, key, values)
        self._note(array, key, "st", len(values))

    def _note(self, array: ObservedArray, key: Any, operation: str, width: int = 1) -> None:
        heat = array.buffer.state
        if heat is None:
            return
        offset = offset_of(array, key)
        if offset is None:  # a slice is a loop over its elements
            self._note_slice(array, key, operation)
            return
        kind = array.raw.dtype.kind
        size = array.raw.itemsize * width
        address = array.address + offset
        if kind == "c":  # the compiler loads and stores the two parts apart
            self._lane(array, operation, address, size // 2, 0)
            self._lane(array, operation, address + size // 2, size // 2, 1)
        else:
            self._lane(array, operation, address, size, 0)
        element = (address - array.buffer.address) // heat.itemsize
        for position in range(element, element + width) if width > 1 else (element,):
            if operation != "st":
                heat.loads[position] += 1
            if operation != "ld":
                heat.stores[position] += 1

    def _note_slice(self, array: ObservedArray, key: Any, operation: str) -> None:
        view = array.viewed(np.asarray(array.raw)[key])
        for index in np.ndindex(view.shape):
            self._note(view, index, operation)

    def _lane(self, array: ObservedArray, operation: str, address: int, size: int, part: int) -> None:
        """Add the running thread to the request that it makes together with other lanes of its warp."""
        frame = sys._getframe(2)
        while KERNEL_MARK not in frame.f_globals:
            frame = frame.f_back  # type: ignore[assignment]
        thread = self.cuda.current
        warp = thread.warp
        bit = 1 << thread.lane
        instruction = frame.f_code, frame.f_lasti
        key = self.paths.of(thread), id(frame.f_code), frame.f_lasti, operation, part
        if warp.seen is None:
            warp.seen = {}
        request = warp.seen.get(key)
        while request is not None and request.mask & bit:  # again, with no loop of the kernel's to tell the turns
            key = (*key, 0)
            request = warp.seen.get(key)
        if request is None:
            request = warp.seen[key] = Pending(array, operation, size, instruction)
        request.mask |= bit
        request.lanes.append(thread.lane)
        request.addresses.append(address)
        if len(request.lanes) == len(warp.threads):
            del warp.seen[key]
            self._close(thread, request)
        if self.flows.watches(thread):
            self.flows.access(thread, array.buffer, address, operation, line_of(*instruction))

    def _close(self, thread: Any, request: Pending) -> None:
        """Count a complete request."""
        buffer, size, addresses = request.array.buffer, request.size, request.addresses
        line = line_of(*request.instruction)
        counts = self._counts(line).of(buffer.space, request.operation)
        counts.requests += 1
        counts.lanes += len(addresses)
        if buffer.space == "global":
            cost = sectors(addresses, size)
            counts.sectors += cost
        else:
            cost = wavefronts(request.lanes, addresses, size)
            counts.wavefronts += cost
            counts.fewest += fewest_wavefronts(addresses, size)
        key = line, buffer.space, request.operation, buffer.name
        kept = self.kept.get(key)
        if kept is None:
            kept = self.kept[key] = Kept(line.number in self._keep)
        if cost > kept.worst_cost or kept.all is not None:
            self._keep_request(kept, cost, thread, line, request)

    def _keep_request(self, kept: Kept, cost: int, thread: Any, line: Line, request: Pending) -> None:
        buffer, block = request.array.buffer, thread.block
        shown = Request(
            line=line,
            operation=request.operation,
            space=buffer.space,
            array=buffer.name,
            size=request.size,
            origin=buffer.address,
            block=tuple(block.index),  # type: ignore[arg-type]
            warp=block.warps.index(thread.warp),
            lanes=tuple(request.lanes),
            addresses=tuple(request.addresses),
        )
        if kept.first is None:
            kept.first = shown
        if cost > kept.worst_cost:
            kept.worst, kept.worst_cost = shown, cost
        if kept.all is not None:
            kept.all.append(shown)

    def _close_all(self, thread: Any) -> None:
        """Count what is left of the warp of `thread`: the other lanes took another path."""
        warp = thread.warp
        if warp.seen:
            requests, warp.seen = warp.seen, None
            for request in requests.values():
                self._close(thread, request)

    def _counts(self, line: Line) -> Counts:
        if line not in self.lines:
            self.lines[line] = Counts()
        return self.lines[line]

    # --- threads -----------------------------------------------------------------------------------------------------

    def barrier(self, block: Any, arrived: list[Any]) -> None:
        """Count a barrier, at the line of the first thread."""
        self._counts(_stopped_at(arrived[0])).barriers += 1
        for warp in block.warps:
            self._close_all(warp.threads[0])
        if self.flows.watches(arrived[0]):
            self.flows.barrier(arrived)

    def meeting(self, group: list[Any]) -> None:
        """Count a warp operation, at the line of its first lane."""
        counts, operation = self._counts(_stopped_at(group[0])), group[0].operation
        if operation in SOURCES:
            counts.shuffles += 1
        elif operation in VOTES:
            counts.votes += 1
        else:
            counts.warp_syncs += 1
        if self.flows.watches(group[0]):
            self.flows.meeting(group, _stopped_at(group[0]))

    def grid_sync(self, blocks: list[Any]) -> None:
        """Count a grid sync, at the line of the first thread."""
        waiting = blocks[0].at_grid_sync
        if waiting:
            self._counts(_stopped_at(waiting[0])).grid_syncs += 1
        for block in blocks:
            for warp in block.warps:
                self._close_all(warp.threads[0])

    def returned(self, thread: Any) -> None:
        """Count what the warp has left when its last thread returns."""
        if not thread.warp.live:
            self._close_all(thread)
        self.paths.forget(thread)


def _stopped_at(thread: Any) -> Line:
    frame = kernel_frame(thread.gr_frame)
    return line_of(frame.f_code, frame.f_lasti)
