"""Random programs of two teams through the whole sanitizer: every race is found, no other, in any schedule.

Eight threads, two in each of the two warps of two teams, do random accesses to a few shared elements; between the steps
there may be a barrier of the block, or for each team one of its own or a synchronisation of its warps.
"""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, float32

from normlab.engine import team_sync
from normlab.sim import sanitize

NOTHING, READ, WRITE = range(3)
NO_SYNC, WARP_SYNC, TEAM_SYNC, BARRIER = range(4)
ACTORS = (0, 1, 32, 33)  # of each team
STEPS, CELLS = 4, 2


@cuda.jit
def interpreted(operations, targets, syncs):
    zero = cuda.shared.array(1, float32)
    one = cuda.shared.array(1, float32)
    thread, team = cuda.threadIdx.x, cuda.threadIdx.y
    if thread == 0 and team == 0:
        zero[0] = one[0] = 0
    cuda.syncthreads()
    for step in range(operations.shape[0]):
        operation = operations[step, team, thread]
        cell = one if targets[step, team, thread] else zero
        if operation == READ:
            value = cell[0]  # noqa: F841
        elif operation == WRITE:
            cell[0] = thread
        if syncs[step, team] == WARP_SYNC:
            cuda.syncwarp()
        elif syncs[step, team] == TEAM_SYNC:
            team_sync(1 + team, 64)
        elif syncs[step, team] == BARRIER:
            cuda.syncthreads()


FIRST = interpreted.py_func.__code__.co_firstlineno
LINES = {READ: FIRST + 12, WRITE: FIRST + 14}
actions = st.lists(st.tuples(st.integers(NOTHING, WRITE), st.integers(0, CELLS - 1)), min_size=8, max_size=8)
of_teams = st.tuples(st.integers(NO_SYNC, TEAM_SYNC), st.integers(NO_SYNC, TEAM_SYNC))
programs = st.lists(
    st.tuples(actions, st.one_of(of_teams, of_teams, st.just((BARRIER, BARRIER)))), min_size=STEPS, max_size=STEPS
)


def before(program, one, other):
    """Whether what an actor did in a step happens before what another one does in another step."""
    (step, actor), (other_step, other_actor) = one, other
    knows = {actor}
    for _, syncs in program[step:other_step]:
        for size, sync in ((2, WARP_SYNC), (4, TEAM_SYNC)):
            groups = {who // size for who in knows if syncs[who // 4] == sync}
            knows |= {who for who in range(8) if who // size in groups}
        if BARRIER in syncs:
            return True
    return other_actor in knows


def races(program):
    accesses = [
        ((step, actor), *action)
        for step, (step_actions, _) in enumerate(program)
        for actor, action in enumerate(step_actions)
        if action[0] != NOTHING
    ]
    return {
        (("zero", "one")[cell], tuple(sorted({LINES[operation], LINES[other_operation]})))
        for (one, operation, cell), (other, other_operation, other_cell) in combinations(accesses, 2)
        if cell == other_cell and {operation, other_operation} != {READ} and not before(program, one, other)
    }


@settings(max_examples=100, deadline=None)
@given(programs)
def test_exactly_the_races_are_found_in_every_schedule(program):
    shape = (STEPS, 2, 64)
    operations, targets = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for step, (step_actions, _) in enumerate(program):
        for actor, action in enumerate(step_actions):
            where = step, actor // 4, ACTORS[actor % 4]
            operations[where], targets[where] = action
    syncs = np.array([sync for _, sync in program])
    want = races(program)
    for schedule in ("forward", "reverse", 1):
        report = sanitize(interpreted, schedule=schedule)[1, (64, 2)](operations, targets, syncs)
        assert {finding.kind for finding in report.findings} <= {"race"}, str(report)
        assert {(finding.array, finding.lines) for finding in report.findings} == want
