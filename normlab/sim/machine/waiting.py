"""Describe stopped threads for a DeadlockError, and read a thread's variables, which show whether a loop goes on."""

from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np

from normlab.sim.language.errors import calling_frame, is_machinery, place
from normlab.sim.language.spins import deciding_names
from normlab.sim.machine.observed import ObservedArray
from normlab.sim.protocols import Block, Thread

SMALL = 4096  # bytes; the contents of larger arrays are not compared, because that would take too long at every turn


def variables(frame: FrameType | None, deciding: bool = False) -> tuple:
    """Return the local variables of the kernel and of the device functions that it is in, in a form to compare.

    The scheduler compares the results of two turns of a loop. If they are equal, the loop waits for a change that only
    another thread can make. `deciding`: only the variables that decide how often loops run, wherever in its loops the
    thread is; otherwise the position in each function is included.
    """
    found: list[Any] = []
    frame = calling_frame(frame)
    # From the innermost device function out to the kernel: a counter in any of them shows that the loop goes on.
    while frame is not None and not is_machinery(frame):
        names = deciding_names(frame.f_code) if deciding else frame.f_locals
        for value in [value for name, value in frame.f_locals.items() if name in names]:
            if isinstance(value, ObservedArray):
                value = value.raw
            # Bytes, because an array of the thread's own changes in place; text, because a NaN differs from itself.
            small = isinstance(value, np.ndarray) and value.nbytes <= SMALL
            found.append(value.tobytes() if small else str(value) if np.isscalar(value) else id(value))
        if not deciding:
            # The same variables at another instruction are another state: a loop may take two steps in turns.
            found.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(found)


def wanted(thread: Thread) -> str:
    """Say in words which threads the stopped `thread` waits for."""
    block = thread.block
    # A thread stands in one of these lists at most, so the order of the questions does not matter.
    if thread in block.arrived:
        return f"{block.live_count - len(block.arrived)} more threads of its block to reach a barrier"
    for number, waiting in block.at_team.items():
        if thread in waiting:
            here, needed = len(waiting), thread.given
            return f"{needed - here} more threads: {here} of {needed} are at barrier {number}"
    if thread in block.at_cluster:
        return f"{block.cluster.missing} more threads of its cluster to arrive at its barrier"
    if thread in block.at_grid_sync:
        return "every thread of the grid that has not returned"
    if thread in thread.warp.waiting:
        at_it = {t.lane for t in thread.warp.waiting if (t.operation, t.mask) == (thread.operation, thread.mask)}
        # Lanes of the mask that have returned do not count as missing: the hardware does not wait for them.
        missing = [t.lane for t in thread.warp.live if thread.mask >> t.lane & 1 and t.lane not in at_it]
        return f"{'lane' if len(missing) == 1 else 'lanes'} {', '.join(map(str, missing))} (mask {thread.mask:#010x})"
    return "a value that no thread writes"


def describe_waiting(what: str, kernel_name: str, blocks: Sequence[Block]) -> str:
    """Return a report that begins with `what` and says where the threads of `blocks` wait, and for which threads.

    Threads that wait at the same operation on the same line share an entry; its first thread is the example.
    """
    places: dict[tuple, list[Thread]] = {}
    returned = 0
    for block in blocks:
        for thread in block.threads:
            # No thread runs while this is written: one that waits for nothing has come to its end.
            if thread.operation is None:
                returned += 1
            else:
                places.setdefault((thread.operation, place(thread.frame)), []).append(thread)
    lines = [f"{what} in kernel {kernel_name!r}:"]
    for (operation, where), threads in places.items():
        count = "1 thread" if len(threads) == 1 else f"{len(threads)} threads"
        lines.append(f"  {count} at {operation}, {where}  (e.g. {threads[0].name})")
        lines.append(f"    waits for {wanted(threads[0])}")
    if returned:
        lines.append(f"  {returned} of the threads have returned")
    return "\n".join(lines)
