"""Random programs of asynchronous copies and of accesses to another block's shared memory, through the whole sanitizer.

Eight threads, two in each warp of two blocks, access two arrays of their block and of the other one; between the steps
there may be a barrier of a block or of the cluster, or one half of the latter. Every race is found, no other, in any
schedule.
"""

from itertools import combinations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import cuda, float32

from normlab.engine.device.asynchronous import commit_copies, copy_async, wait_copies
from normlab.engine.device.clusters import cluster_arrive, cluster_sync, cluster_wait, load_from_block, store_to_block
from normlab.sim import sanitize

NOTHING, READ, WRITE, REMOTE_READ, REMOTE_WRITE, COPY, WAIT = range(7)
NO_SYNC, BARRIER, CLUSTER_SYNC, ARRIVE_AT_CLUSTER, WAIT_FOR_CLUSTER = range(5)
ACTORS = (0, 1, 32, 33)
STEPS = 5


@cuda.jit
def interpreted(operations, targets, syncs, source):
    zero = cuda.shared.array(4, float32, 16)
    one = cuda.shared.array(4, float32, 16)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    if thread == 0:
        zero[0] = one[0] = 0
    cluster_sync()
    for step in range(operations.shape[1]):
        operation = operations[block, step, thread]
        cell = one if targets[block, step, thread] else zero
        if operation == READ:
            value = cell[0]
        elif operation == WRITE:
            cell[0] = thread
        elif operation == REMOTE_READ:
            value = load_from_block(cell, 0, 1 - block)  # noqa: F841
        elif operation == REMOTE_WRITE:
            store_to_block(cell, 0, thread, 1 - block)
        elif operation == COPY:
            copy_async(cell, 0, source, 0, 4)
            commit_copies()
        elif operation == WAIT:
            wait_copies(0)
        if syncs[step] == BARRIER:
            cuda.syncthreads()
        elif syncs[step] == CLUSTER_SYNC:
            cluster_sync()
        elif syncs[step] == ARRIVE_AT_CLUSTER:
            cluster_arrive()
        elif syncs[step] == WAIT_FOR_CLUSTER:
            cluster_wait()
    cluster_sync()


FIRST = interpreted.py_func.__code__.co_firstlineno
LINES = {READ: FIRST + 12, WRITE: FIRST + 14, REMOTE_READ: FIRST + 16, REMOTE_WRITE: FIRST + 18, COPY: FIRST + 20}
actions = st.tuples(st.integers(NOTHING, WAIT), st.integers(0, 1))
IDLE = [(NOTHING, 0)] * 8
TWO_UNDER_WAY = [  # into one place, over a barrier; one thread waits for its own and reads what the other may write
    (IDLE, NO_SYNC),
    (IDLE, NO_SYNC),
    ([*IDLE[:2], (COPY, 0), (COPY, 0), *IDLE[4:]], CLUSTER_SYNC),
    ([*IDLE[:2], (WAIT, 0), *IDLE[3:]], NO_SYNC),
    ([*IDLE[:2], (READ, 0), *IDLE[3:]], NO_SYNC),
]
READ_AGAIN = [  # what the thread itself has a copy under way to, since it read it last
    (IDLE, NO_SYNC),
    (IDLE, NO_SYNC),
    ([(READ, 1), *IDLE[1:]], NO_SYNC),
    ([(COPY, 1), *IDLE[1:]], NO_SYNC),
    ([(READ, 1), *IDLE[1:]], NO_SYNC),
]
programs = st.lists(
    st.tuples(st.lists(actions, min_size=8, max_size=8), st.integers(NO_SYNC, WAIT_FOR_CLUSTER)),
    min_size=STEPS,
    max_size=STEPS,
)


def in_turn(syncs):
    """The synchronisations, with a wait behind each arrival at the cluster's barrier, at the end at the latest."""
    arrived, made = False, []
    for step, sync in enumerate(syncs):
        if arrived and (sync in (CLUSTER_SYNC, ARRIVE_AT_CLUSTER) or step == len(syncs) - 1):
            sync = WAIT_FOR_CLUSTER
        elif not arrived and (sync == WAIT_FOR_CLUSTER or (sync == ARRIVE_AT_CLUSTER and step == len(syncs) - 1)):
            sync = CLUSTER_SYNC
        arrived = sync == ARRIVE_AT_CLUSTER or (arrived and sync != WAIT_FOR_CLUSTER)
        made.append(sync)
    return made


def before(syncs, one, other):
    """Whether what an actor does in a step happens before what another one does in another step."""
    (step, actor), (other_step, other_actor) = one, other
    if step >= other_step:
        return False
    between = syncs[step:other_step]
    halves = ARRIVE_AT_CLUSTER in between and WAIT_FOR_CLUSTER in between[between.index(ARRIVE_AT_CLUSTER) :]
    barrier = BARRIER in between and actor // 4 == other_actor // 4
    return actor == other_actor or barrier or halves or CLUSTER_SYNC in between


def races(program):
    """What races, as (array, lines): an access lasts from its first moment to its last one, a copy's may never come."""
    syncs = in_turn([sync for _, sync in program])
    accesses = []
    for step, (step_actions, _) in enumerate(program):
        for actor, (operation, cell) in enumerate(step_actions):
            if operation not in (NOTHING, WAIT):
                owner = 1 - actor // 4 if operation in (REMOTE_READ, REMOTE_WRITE) else actor // 4
                waits = [later for later in range(step + 1, STEPS) if program[later][0][actor][0] == WAIT]
                end = (waits[0], actor) if waits else None
                accesses.append(((owner, cell), operation, (step, actor), end if operation == COPY else (step, actor)))
    found = set()
    for (place, operation, start, end), (other_place, other, other_start, other_end) in combinations(accesses, 2):
        if place != other_place or {operation, other} <= {READ, REMOTE_READ}:
            continue
        in_order = end is not None and before(syncs, end, other_start)
        in_other_order = other_end is not None and before(syncs, other_end, start)
        if not in_order and not in_other_order:
            found.add((("zero", "one")[place[1]], tuple(sorted({LINES[operation], LINES[other]}))))
    return found


@settings(max_examples=100, deadline=None)
@given(programs)
@example(TWO_UNDER_WAY)
@example(READ_AGAIN)
def test_exactly_the_races_are_found_in_every_schedule(program):
    shape = (2, STEPS, 34)
    operations, targets = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for step, (step_actions, _) in enumerate(program):
        for actor, action in enumerate(step_actions):
            where = actor // 4, step, ACTORS[actor % 4]
            operations[where], targets[where] = action
    syncs = np.array(in_turn([sync for _, sync in program]))
    want = races(program)
    for schedule in ("forward", "reverse", 1):
        launch = sanitize(interpreted, schedule=schedule, cluster=2)[2, 34]
        report = launch(operations, targets, syncs, np.zeros(4, np.float32))
        assert {finding.kind for finding in report.findings} <= {"race"}, str(report)
        assert {(finding.array, finding.lines) for finding in report.findings} == want


@cuda.jit
def read_in_a_loop_without_a_wait(source, out):
    tile = cuda.shared.array(128, float32, 16)
    thread = cuda.threadIdx.x
    copy_async(tile, 4 * thread, source, 4 * thread, 4)
    commit_copies()
    for _ in range(3):
        out[thread] += tile[4 * thread]
    wait_copies(0)


def test_a_read_of_what_a_copy_has_not_filled_yet_is_a_race_and_no_read_of_garbage():
    report = sanitize(read_in_a_loop_without_a_wait)[1, 32](np.zeros(128, np.float32), np.zeros(32, np.float32))
    assert [finding.kind for finding in report.findings] == ["race"]
