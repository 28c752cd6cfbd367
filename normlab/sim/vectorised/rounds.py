"""Tell which thread the scheduler would have run first.

The scheduler runs block after block. Inside a block, each warp runs to the next barrier, then the next warp. A warp
runs in rounds: each lane to its next warp operation, then the operations are answered of which all lanes are there, and
the next round begins. A lane outside of an operation's mask is thus a round ahead of the lanes inside.
"""

from typing import Any

import numpy as np

from normlab.sim.vectorised.refusal import NotVectorisedError

Moment = tuple[Any, Any]  # barriers passed and round of some lanes: an int for all of them, or an array


class Rounds:
    """The barriers that the lanes of a chunk have passed, and their rounds since then."""

    def __init__(self, machine: Any):
        """Start all lanes of `machine` in round 0 before the first barrier."""
        self._machine = machine
        # An int as long as all lanes have the same.
        self._barriers: Any = 0
        self._rounds: Any = 0

    def barrier(self, ids: np.ndarray) -> None:
        """Let the lanes pass a barrier of their blocks."""
        if len(ids) == self._machine.alive_count:
            self._barriers, self._rounds = self._barriers + 1, 0
            return
        self._barriers, self._rounds = self._of_each_lane(self._barriers), self._of_each_lane(self._rounds)
        self._barriers[ids] += 1
        self._rounds[ids] = 0

    def warp_operation(self, ids: np.ndarray) -> None:
        """Let the lanes pass a warp operation, those of one warp together."""
        machine = self._machine
        if len(ids) == machine.alive_count and isinstance(self._rounds, int):
            self._rounds += 1
            return
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
        if self._machine.partial:
            raise NotVectorisedError("of atomics whose order decides, in clusters or teams")
        if self._machine.launch.proof is not None and self._machine.launch.proof.any_order:
            raise NotVectorisedError("the schedule decides the order of atomics")
        barriers, rounds = (
            numbers if isinstance(numbers, int) else numbers[ids] for numbers in (self._barriers, self._rounds)
        )
        return barriers, rounds

    def order(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the places of lanes, of which the numbers rise, in the scheduler's order; None: as they are."""
        barriers, rounds = self.of(ids)
        if isinstance(barriers, int) and isinstance(rounds, int):
            return None
        return np.lexsort(self.keys(ids, (barriers, rounds)))

    def keys(self, ids: np.ndarray, moment: Moment) -> tuple[np.ndarray, ...]:
        """Return what lanes that stand at a moment are sorted by, the last key first."""
        machine = self._machine
        barriers, rounds = (np.broadcast_to(numbers, len(ids)) for numbers in moment)
        return ids, rounds, machine.warps[ids], barriers, machine.block_of[ids]
