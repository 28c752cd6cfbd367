"""Tell which thread the scheduler would have run first.

The scheduler runs cluster after cluster. Of a cluster, each block runs to the cluster's next barrier, then the next
block. A block runs in passes: each warp to its next barrier, then the next warp; then the block's barrier, or those of
its teams, are answered to which all threads have come, and the next pass begins. A warp runs in rounds: each lane to
its next warp operation, then the operations are answered of which all lanes are there, and the next round begins.
"""

from typing import Any

import numpy as np

from normlab.sim.protocols import CLUSTER_PASSES
from normlab.sim.vectorised.refusal import NotVectorisedError

Moment = tuple[Any, Any]  # pass and round of some lanes: an int for all of them, or an array


class Rounds:
    """The passes of their blocks in which the lanes of a chunk are, and their rounds in it."""

    def __init__(self, machine: Any):
        """Start all lanes of `machine` in round 0 of the first pass."""
        self._machine = machine
        # An int as long as all lanes have the same.
        self._passes: Any = 0
        self._rounds: Any = 0

    def barrier(self, ids: np.ndarray, owners: np.ndarray, unit: int = 1) -> None:
        """Let the lanes of each of the `owners`, one for each lane, meet and begin the next pass, or next `unit`."""
        everybody = len(ids) == self._machine.alive_count
        # The usual barrier costs an addition, however many lanes there are.
        if everybody and isinstance(self._passes, int):
            self._passes, self._rounds = (self._passes // unit + 1) * unit, 0
            return
        self._passes, self._rounds = self._of_each_lane(self._passes), self._of_each_lane(self._rounds)
        # Threads that meet go on in the pass after that in which the last of them has come.
        last = np.zeros(int(owners.max()) + 1, np.int64)
        np.maximum.at(last, owners, self._passes[ids])
        self._passes[ids] = (last[owners] // unit + 1) * unit
        self._rounds[ids] = 0
        # All lanes are alike again, and the next barrier is a cheap one.
        if everybody and (self._passes[ids] == self._passes[ids[0]]).all():
            self._passes, self._rounds = int(self._passes[ids[0]]), 0

    def warp_operation(self, ids: np.ndarray) -> None:
        """Let the lanes pass a warp operation, those of one warp together."""
        machine = self._machine
        if len(ids) == machine.alive_count and isinstance(self._rounds, int):
            self._rounds += 1
            return
        # Lanes differ from here on: one outside of the operation's mask is a round ahead of those inside.
        self._rounds = self._of_each_lane(self._rounds)
        warps = machine.warps[ids]
        # The lane that comes last decides, and all go on in the round after its own.
        last = np.zeros(machine.warp_count, np.int64)
        np.maximum.at(last, warps, self._rounds[ids])
        self._rounds[ids] = last[warps] + 1

    def _of_each_lane(self, numbers: Any) -> np.ndarray:
        return np.full(self._machine.size, numbers) if isinstance(numbers, int) else numbers

    def of(self, ids: np.ndarray) -> Moment:
        """Return where lanes stand now. Raises NotVectorisedError where the scheduler's order depends on more."""
        if self._machine.launch.proof is not None and self._machine.launch.proof.any_order:
            raise NotVectorisedError("the schedule decides the order of atomics")
        passes, rounds = (
            numbers if isinstance(numbers, int) else numbers[ids] for numbers in (self._passes, self._rounds)
        )
        return passes, rounds

    def order(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the places of lanes, of which the numbers rise, in the scheduler's order; None: as they are."""
        passes, rounds = self.of(ids)
        if isinstance(passes, int) and isinstance(rounds, int):
            return None
        return np.lexsort(self.keys(ids, (passes, rounds)))

    def keys(self, ids: np.ndarray, moment: Moment) -> tuple[np.ndarray, ...]:
        """Return what lanes that stand at a moment are sorted by, the last key first."""
        machine = self._machine
        passes, rounds = (np.broadcast_to(numbers, len(ids)) for numbers in moment)
        block = machine.block_of[ids]
        # Read from the end: cluster, phase between two of its barriers, block, pass, warp, round, lane.
        return ids, rounds, machine.warps[ids], passes, block, passes // CLUSTER_PASSES, block // machine.launch.cluster
