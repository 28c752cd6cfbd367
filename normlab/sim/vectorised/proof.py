"""Prove that a launch makes none of the mistakes that `sanitize` reports: the scheduler need not run it then.

To run a launch the engine compares threads at every meeting anyway. A proof asks for more, and gives up otherwise:

- the blocks, or clusters, of all chunks are compared with each other, not only those of one chunk;
- no two threads write to one element, even the same number;
- what a thread reads has been written, in shared and local memory and in arrays that count as never written;
- no index is negative;
- no thread of a block has returned before a barrier of the block, or a thread of the grid before a grid sync;
- a thread reaches into another block's shared memory after its first wait at the cluster's barrier, when all blocks
  have begun;
- where no schedule may change a result: no atomic operation does, as sums of floats and used results would;
- an asynchronous copy writes when it begins and when it arrives; between the two its target counts as never written,
  and no thread writes there.

Locks have no proof: a thread that takes a lock and gives it back updates one element twice, which the engine leaves to
the scheduler.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from normlab.sim.vectorised.memory import Store
from normlab.sim.vectorised.races import MANY, NOBODY
from normlab.sim.vectorised.refusal import NotVectorisedError


class Proof:
    """What a launch that is to be proved keeps from chunk to chunk: which blocks have accessed which elements.

    A cluster counts as one block.
    """

    def __init__(self, uninitialized: Sequence[np.ndarray], any_order: bool):
        """Begin; `uninitialized`: arrays that count as never written. `any_order`: no schedule may change a result."""
        self._uninitialized, self.any_order = uninitialized, any_order
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}  # readers, writers, updaters

    def adopted(self, store: Store) -> None:
        """Count no element of a host's array as written, if some of them count as never written."""
        for array in self._uninitialized:
            if store.original is not None and np.may_share_memory(array, store.original):
                store.note_writes()

    def compare_blocks(self, accesses: Any, machine: Any) -> None:
        """Raise NotVectorisedError if a block touches what another one of the launch writes.

        `accesses`: all of the chunk to an array in global memory, whose loads are recorded from the first chunk on.
        """
        if machine.blocks == machine.launch.blocks:
            return  # the chunk is all of the launch
        # By identity: the launch keeps its arrays, so no other one gets this one's id.
        if id(accesses.data) not in self._blocks:
            self._blocks[id(accesses.data)] = tuple(np.full(len(accesses.data), NOBODY, np.int32) for _ in range(3))  # type: ignore[assignment]
        blocks = self._blocks[id(accesses.data)]
        log, owners = accesses.chunk, ((machine.first + machine.block_of) // machine.launch.cluster).astype(np.int32)
        touched = []
        for marks, records in zip(blocks, (log.reads, log.writes, log.atomics), strict=True):
            for ids, where, _ in records:
                places = where if isinstance(where, np.ndarray) else np.full(len(ids), where)
                _claim(marks, places, owners[ids])
                touched.append(places)
        for places in touched:
            # After all claims, because a place that one kind of access has touched may be another kind's, too.
            reader, writer, updater = (marks[places] for marks in blocks)
            # Two kinds of access to one element conflict, unless the same block alone makes both. Loads of several
            # blocks do not, nor do atomics.
            if (writer == MANY).any() or any(
                ((one != NOBODY) & (other != NOBODY) & ((one != other) | (one == MANY))).any()
                for one, other in ((reader, writer), (updater, writer), (reader, updater))
            ):
                raise NotVectorisedError("blocks touch the same element, and nothing orders them")


def _claim(marks: np.ndarray, places: np.ndarray, owners: np.ndarray) -> None:
    """Let elements belong to their owners, or to MANY if a block of an earlier chunk has them already.

    Of several blocks of this chunk any one is the owner: the chunk's blocks have been compared with each other.
    """
    before = marks[places]
    marks[places] = np.where((before == NOBODY) | (before == owners), owners, MANY)


def in_flight(lanes: Any, store: Store, place: Any, numbers: Any) -> None:
    """Note that lanes have begun asynchronous copies of `numbers` to `place`, which may arrive at once."""
    if store.written is not None:
        # It may arrive now, so it counts as a write here and once more at its wait (copies.py).
        store.accesses.written(lanes, place, numbers)
        # A thread that reads before the wait would find the old number or the new one: so it reads what was never
        # written.
        store.written[place] = 0


def arrived(store: Store, place: Any) -> None:
    """Note that a copy has arrived; raises NotVectorisedError if a thread, or another copy, has written there."""
    if store.written is not None:
        if (store.written[place] != 0).any():
            raise NotVectorisedError("a thread writes to the target of an asynchronous copy")
        store.written[place] = store.whole


def all_written(store: Store, place: Any) -> None:
    """Raise NotVectorisedError if an element at `place` has never been written, in a launch that is to be proved."""
    if store.written is not None and (store.written[place] != store.whole).any():
        raise NotVectorisedError("a thread reads what no thread has written")


def not_negative(part: Any) -> None:
    """Raise NotVectorisedError for an index that is negative in a lane."""
    if isinstance(part, (int, np.integer)):
        negative = int(part) < 0
    else:
        # A slice has neither, and names no element by itself: only Vectors are looked at.
        data, low = getattr(part, "data", None), getattr(part, "low", None)
        negative = (low is None or low < 0) and isinstance(data, np.ndarray) and bool(data.size) and int(data.min()) < 0
    if negative:
        raise NotVectorisedError("an index is negative")


def complete(machine: Any, ids: np.ndarray) -> None:
    """Raise NotVectorisedError if blocks come to a barrier without all of their threads, in a launch to be proved."""
    # With as many lanes as the chunk had at first, none has returned.
    if machine.launch.proof is None or len(ids) == machine.size:
        return
    here = np.bincount(machine.block_of[ids], minlength=machine.blocks)
    if ((here != 0) & (here != machine.launch.threads)).any():
        raise NotVectorisedError("threads have returned before a barrier of their block")
