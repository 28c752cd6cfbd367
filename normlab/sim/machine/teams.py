"""Provide a barrier for some of a block's threads: the twin of an engine's `team_sync`.

The threads that wait stand in their block's `at_team`; `Block.release_teams` lets them go on.
"""

from operator import index
from typing import Any

from normlab.sim.language.errors import SimulationError
from normlab.sim.machine.threads import WARP_SIZE
from normlab.sim.protocols import Cuda

LAST = 15  # a block has barriers 0 to 15, and syncthreads uses 0


def team_sync(cuda: Cuda, number: Any, threads: Any) -> None:
    """Wait at the block's barrier `number` until `threads` threads have come to it.

    Raises SimulationError for a number or a count that no GPU takes, for a count that differs from that of a thread
    waiting there already, and for more threads than the count.
    """
    number, threads = index(number), index(threads)
    size = len(cuda.grid_run.thread_indices)
    if not 1 <= number <= LAST:
        raise SimulationError(f"team_sync has the barriers 1 to {LAST}, and no {number}")
    # PTX, bar.sync: the thread count has to be a multiple of the warp size.
    if threads % WARP_SIZE or not 0 < threads <= size:
        raise SimulationError(
            f"team_sync waits for whole warps of {WARP_SIZE} threads, in a block of {size}, and not for {threads}"
        )
    thread = cuda.current
    waiting = thread.block.at_team.setdefault(number, [])
    # A barrier counts to one number: the threads that meet there must agree on it.
    if waiting and waiting[0].given != threads:
        raise SimulationError(
            f"a thread that waits for {threads} at barrier {number} meets one that waits for {waiting[0].given} there"
        )
    # `Block.release_teams` lets a full team go only when the block's warps have run: until then one more may come.
    if len(waiting) == threads:
        raise SimulationError(
            f"more than {threads} threads come to barrier {number} at the same time, and chance decides which of them "
            "go on together: give each team a barrier of its own"
        )
    thread.given = threads
    waiting.append(thread)
    cuda.grid_run.stop(thread, f"team_sync {number}")
