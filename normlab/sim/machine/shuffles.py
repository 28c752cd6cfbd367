"""Run warp operations: shuffles, votes, matches and `syncwarp`.

`WarpOperations` is the part of the `cuda` namespace that a lane calls: it stores mask and value in its thread and
stops. Once all lanes named in the mask are there, `Warp.answer` (warp.py) calls the operation's function in
`RESOLVERS`, which sees the whole group, lane number → thread, and gives each thread its result.

Sources: PTX ISA, shfl.sync, vote.sync, match.sync; the signatures are those of numba-cuda, which has no `width`.
"""

import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from normlab.sim.language.errors import MaskError, ShuffleError, place
from normlab.sim.language.integers import INTEGER_CASTS
from normlab.sim.protocols import Grid, Thread

Group = dict[int, Thread]

_int32 = INTEGER_CASTS["int32"]

FULL_MASK = 0xFFFFFFFF
SHUFFLED_TYPES = (int, np.int32, np.int64, np.uint32, np.uint64, np.float32, np.float64)
USUAL_TYPES = frozenset({int, np.int64, np.float32, np.float64})  # a look-up here is faster than isinstance


class WarpOperations:
    """The warp's part of the simulated `cuda` namespace."""

    current: Any
    grid_run: Grid
    observer: Any

    def _meet(self, operation: str, mask: Any, given: Any) -> Any:
        """Wait until all lanes of `mask` have come to `operation`; return this lane's answer."""
        thread = self.current
        # A mask may come as -1: its low 32 bits are the lanes.
        thread.mask = mask = int(mask) & FULL_MASK
        # PTX: the behaviour is undefined if the executing thread is not in the membermask.
        if not mask >> thread.lane & 1:
            observer = self.observer
            if observer is None or not observer.refuse_mask(thread, operation, mask):
                raise MaskError(
                    f"lane {thread.lane} calls {operation} with mask {mask:#010x}, which leaves the lane itself out\n"
                    f"  at {place(sys._getframe())}"
                )
            # The observer has reported it. With itself alone in the mask the lane waits for no other, and goes on.
            thread.mask = 1 << thread.lane
        # `Warp.resolve` groups the waiting lanes by operation and mask; where they stand does not matter, as on Volta.
        thread.given = given
        thread.warp.waiting.append(thread)
        thread.operation = operation
        self.grid_run.hand_over()  # `stop` in place, because no operation is more frequent
        return thread.result

    def _shuffle(self, operation: str, mask: Any, value: Any, by: Any) -> Any:
        usual = type(value) in USUAL_TYPES
        # Numba has shuffles of these types alone; it refuses a float16 and a bool while it compiles.
        if not usual and (not isinstance(value, SHUFFLED_TYPES) or isinstance(value, bool)):
            raise TypeError(f"{operation} moves 32- and 64-bit ints and floats, not {type(value).__name__}")
        return self._meet(operation, mask, (value, int(by) & 31))  # the hardware reads five bits

    def shfl_sync(self, mask: Any, value: Any, src_lane: Any) -> Any:
        """Return the value that lane `src_lane` gave."""
        return self._shuffle("shfl_sync", mask, value, src_lane)

    def shfl_up_sync(self, mask: Any, value: Any, delta: Any) -> Any:
        """Return the value of the lane `delta` below, or the lane's own value if there is no such lane."""
        return self._shuffle("shfl_up_sync", mask, value, delta)

    def shfl_down_sync(self, mask: Any, value: Any, delta: Any) -> Any:
        """Return the value of the lane `delta` above, or the lane's own value beyond lane 31."""
        return self._shuffle("shfl_down_sync", mask, value, delta)

    def shfl_xor_sync(self, mask: Any, value: Any, lane_mask: Any) -> Any:
        """Return the value of lane `own ^ lane_mask`."""
        return self._shuffle("shfl_xor_sync", mask, value, lane_mask)

    def all_sync(self, mask: Any, predicate: Any) -> bool:
        """Return whether the predicate is true in every lane of the mask."""
        return self._meet("all_sync", mask, bool(predicate))

    def any_sync(self, mask: Any, predicate: Any) -> bool:
        """Return whether the predicate is true in some lane of the mask."""
        return self._meet("any_sync", mask, bool(predicate))

    def eq_sync(self, mask: Any, predicate: Any) -> bool:
        """Return whether the predicate (true or false) is the same in every lane of the mask."""
        return self._meet("eq_sync", mask, bool(predicate))

    def ballot_sync(self, mask: Any, predicate: Any) -> np.int64:
        """Return the lanes whose predicate is true, as an int32: lane 31 is the sign bit."""
        return self._meet("ballot_sync", mask, bool(predicate))

    def match_any_sync(self, mask: Any, value: Any) -> np.int64:
        """Return the lanes that gave the same value as this one, as an int32."""
        return self._meet("match_any_sync", mask, value)

    def match_all_sync(self, mask: Any, value: Any) -> tuple[np.int64, bool]:
        """Return (the lanes, True) when all gave the same value, else (0, False)."""
        return self._meet("match_all_sync", mask, value)

    def syncwarp(self, mask: Any = FULL_MASK) -> None:
        """Wait for the lanes of the mask."""
        self._meet("syncwarp", mask, None)

    def activemask(self) -> int:
        """Return the lanes that stand at this very call, once no lane of the warp can go on."""
        thread, caller = self.current, sys._getframe(1)
        # activemask names no lanes. Its group is whatever stands at the same call when nothing else can go on.
        thread.mask, thread.given = 0, (id(caller.f_code), caller.f_lasti)
        thread.warp.waiting.append(thread)
        self.grid_run.stop(thread, "activemask")
        result = thread.result
        # A loop `while activemask() != full` waits without an atomic; counted, it ends as a livelock.
        self.grid_run.turn(thread)
        return result

    def lanemask_lt(self) -> int:
        """Return the lanes below this one."""
        return (1 << self.current.lane) - 1


def _source_up(lane: int, delta: int) -> int:
    # shfl.up clamps at lane 0, shfl.down at lane 31: beyond, a lane gets its own value.
    return lane - delta if lane >= delta else lane


def _source_down(lane: int, delta: int) -> int:
    return lane + delta if lane + delta < 32 else lane


# For traces, which count shuffles and votes apart; `syncwarp` and `activemask` are neither.
VOTES = ("all_sync", "any_sync", "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync")
SOURCES: dict[str, Callable[[int, int], int]] = {
    "shfl_sync": lambda lane, source: source,
    "shfl_up_sync": _source_up,
    "shfl_down_sync": _source_down,
    "shfl_xor_sync": lambda lane, bits: lane ^ bits,
}


def _shuffled(operation: str) -> Callable[[Group], None]:
    source_of = SOURCES[operation]

    def resolve(group: Group) -> None:
        for lane, thread in group.items():
            # By the reader's own operand: each lane chooses the lane from which it reads.
            source = source_of(lane, thread.given[1])
            # The group holds the lanes that have come: a lane outside the mask or returned is not in it.
            if source in group:
                thread.result = group[source].given[0]
            else:
                _refuse(thread, source, operation)

    return resolve


def _refuse(thread: Thread, source: int, operation: str) -> None:
    """Raise in the lane that reads a value which no lane has given, so that the traceback ends at the lane's line."""
    warp, observer = thread.warp, thread.block.grid.cuda.observer
    if source >= len(warp.threads):
        why = "does not exist in this block"
    elif not thread.mask >> source & 1:
        why = "is not in the mask"
    else:
        why = "has returned"
    # Undefined in PTX. Under an observer the lane keeps its own value, so that a run can find more than one mistake.
    if observer is not None and observer.refuse_shuffle(thread, source, why):
        thread.result = thread.given[0]
        return
    # `annotate` names the running thread; here that must be the reader, not the lane that came last.
    thread.block.grid.cuda.current = thread
    thread.throw(
        ShuffleError(
            f"{operation}: lane {thread.lane} reads from lane {source}, which {why} (mask {thread.mask:#010x})\n"
            f"  at {place(thread.frame)}"
        )
    )


def _voted(verdict: Callable[[list[bool]], bool]) -> Callable[[Group], None]:
    def resolve(group: Group) -> None:
        result = verdict([thread.given for thread in group.values()])
        for thread in group.values():
            thread.result = result

    return resolve


def _lanes(lanes: Any) -> np.int64:
    # Numba types the lanes of votes and matches as an int32: with lane 31 among them the number is negative.
    return _int32(sum(1 << lane for lane in lanes))


def _ballot(group: Group) -> None:
    result = _lanes(lane for lane, thread in group.items() if thread.given)
    for thread in group.values():
        thread.result = result


def _bits(value: Any) -> Any:
    """Return the bits of a value, which the hardware compares: a NaN equals itself, and -0.0 is not 0.0."""
    # As a double, which holds every float32 exactly.
    return struct.pack("d", value) if isinstance(value, (float, np.floating)) else int(value)


def _match_any(group: Group) -> None:
    bits = {lane: _bits(thread.given) for lane, thread in group.items()}
    for lane, thread in group.items():
        thread.result = _lanes(other for other in group if bits[other] == bits[lane])


def _match_all(group: Group) -> None:
    same = len({_bits(thread.given) for thread in group.values()}) == 1
    for thread in group.values():
        thread.result = (_lanes(group), True) if same else (_int32(0), False)


def _active(group: Group) -> None:
    # Not through `_lanes`: Numba types this mask as a uint32, which is never negative.
    result = sum(1 << lane for lane in group)
    for thread in group.values():
        thread.result = result


RESOLVERS: dict[str | None, Callable[[Group], None]] = {
    **{operation: _shuffled(operation) for operation in SOURCES},
    "all_sync": _voted(all),
    "any_sync": _voted(any),
    "eq_sync": _voted(lambda given: len(set(given)) == 1),
    "ballot_sync": _ballot,
    "match_any_sync": _match_any,
    "match_all_sync": _match_all,
    "syncwarp": lambda group: None,  # the meeting itself is all: `Warp.answer` has told the observer of it
    "activemask": _active,
}
