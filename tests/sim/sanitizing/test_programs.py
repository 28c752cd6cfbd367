"""Random programs through the whole sanitizer: all races and reads of garbage are found, no other, in any schedule.

Eight threads, two in each warp of two blocks of two warps, do random accesses to a few arrays; between the steps there
may be a barrier or a warp synchronisation. Which of two accesses are ordered is then plain to see.
"""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

from normlab.sim import sanitize

NOTHING, READ, WRITE, ATOMIC = range(4)
NO_SYNC, BARRIER, WARP_SYNC = range(3)
ACTORS = (0, 1, 32, 33)
CELLS = 3


@cuda.jit
def interpreted(operations, targets, syncs, cells):
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    for step in range(operations.shape[1]):
        operation = operations[block, step, thread]
        cell = cells[targets[block, step, thread]]
        if operation == READ:
            value = cell[0]  # noqa: F841
        elif operation == WRITE:
            cell[0] = thread
        elif operation == ATOMIC:
            cuda.atomic.add(cell, 0, 1)
        if syncs[block, step] == BARRIER:
            cuda.syncthreads()
        elif syncs[block, step] == WARP_SYNC:
            cuda.syncwarp()


FIRST = interpreted.py_func.__code__.co_firstlineno
LINES = {READ: FIRST + 7, WRITE: FIRST + 9, ATOMIC: FIRST + 11}
actions = st.tuples(st.integers(NOTHING, ATOMIC), st.integers(0, CELLS - 1))
steps = st.lists(
    st.tuples(st.lists(actions, min_size=4, max_size=4), st.integers(NO_SYNC, WARP_SYNC)), min_size=3, max_size=3
)


def ordered(program, one, other):
    """Whether a barrier of both threads' block, or a synchronisation of their warp, stands between two accesses."""
    (block, step, actor), (other_block, other_step, other_actor) = one, other
    if block != other_block:
        return False
    between = [sync for _, sync in program[block][min(step, other_step) : max(step, other_step)]]
    return actor == other_actor or BARRIER in between or (WARP_SYNC in between and actor // 2 == other_actor // 2)


def accesses_of(program):
    return [
        ((block, step, actor), *action)
        for block, block_steps in enumerate(program)
        for step, (step_actions, _) in enumerate(block_steps)
        for actor, action in enumerate(step_actions)
        if action[0] != NOTHING
    ]


def races(program):
    return {
        (f"cells[{cell}]", tuple(sorted({LINES[operation], LINES[other_operation]})))
        for (one, operation, cell), (other, other_operation, other_cell) in combinations(accesses_of(program), 2)
        if cell == other_cell
        and {operation, other_operation} not in ({READ}, {ATOMIC})
        and not ordered(program, one, other)
    }


def reads_of_garbage(program):
    """Return the reads and atomics that no write precedes or races with; for a read, an atomic counts as a write."""
    accesses = accesses_of(program)
    return {
        (f"cells[{cell}]", (LINES[operation],))
        for one, operation, cell in accesses
        if operation != WRITE
        and not any(
            other_cell == cell
            and (other_operation == WRITE or (other_operation, operation) == (ATOMIC, READ))
            and (not ordered(program, one, other) or other[1] < one[1])
            for other, other_operation, other_cell in accesses
        )
    }


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, min_size=2, max_size=2))
def test_exactly_the_races_and_the_reads_of_garbage_are_found_in_every_schedule(program):
    shape = (2, 3, 34)
    operations, targets = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    syncs = np.array([[sync for _, sync in block_steps] for block_steps in program])
    for block, block_steps in enumerate(program):
        for step, (step_actions, _) in enumerate(block_steps):
            for actor, action in zip(ACTORS, step_actions, strict=True):
                operations[block, step, actor], targets[block, step, actor] = action
    want = {"race": races(program), "uninitialized-read": reads_of_garbage(program)}
    for schedule in ("forward", "reverse", 1):
        cells = tuple(np.zeros(1, np.int64) for _ in range(CELLS))
        watched = sanitize(interpreted, schedule=schedule, uninitialized=cells)
        found = {kind: set() for kind in want}
        for finding in watched[2, 34](operations, targets, syncs, cells).findings:
            found[finding.kind].add((finding.array, finding.lines))
        assert found == want
