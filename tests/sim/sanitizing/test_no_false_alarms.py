"""Right programs that look like wrong ones: nothing is found in them, and something is where they are spoiled."""

import numpy as np
import pytest
from numba import cuda, float32, int32
from sim.planted.collection import floats

from normlab.sim import sanitize

# --- a counter that the last block resets, as in NVIDIA's threadFenceReduction ----------------------------------------


def reduction(fenced, reset_by_all=False):
    """A sum over blocks: the last one adds up, and sets the counter back for the next launch."""

    @cuda.jit
    def kernel(x, partial, counter, total):
        is_last = cuda.shared.array(1, int32)
        thread, block, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.gridDim.x
        if thread == 0:
            partial[block] = x[block]
            if fenced:
                cuda.threadfence()
            is_last[0] = cuda.atomic.inc(counter, 0, blocks) == blocks - 1
        cuda.syncthreads()
        if is_last[0] and thread == 31:
            value = float32(0)
            for other in range(blocks):
                value += partial[other]
            total[0] = value
        if (is_last[0] or reset_by_all) and thread == 31:
            counter[0] = 0

    return kernel


def counted(kernel, schedule):
    total, counter = np.zeros(1, np.float32), np.zeros(1, np.uint32)
    report = sanitize(kernel, schedule=schedule)[6, 32](floats(6), np.zeros(6, np.float32), counter, total)
    return report, total[0], counter[0]


@pytest.mark.parametrize("schedule", ["forward", "reverse", 3, 4])
def test_the_last_block_may_reset_the_counter(schedule):
    report, total, counter = counted(reduction(fenced=True), schedule)
    assert report.findings == ()
    assert (total, counter) == (21, 0)


@pytest.mark.parametrize("schedule", ["forward", "reverse", 3, 4])
def test_without_a_fence_it_may_not(schedule):
    report, _, _ = counted(reduction(fenced=False), schedule)
    assert {(finding.kind, finding.array) for finding in report.findings} == {("race", "partial"), ("race", "counter")}


@pytest.mark.parametrize("schedule", ["forward", "reverse", 3, 4])
def test_no_other_block_may(schedule):
    report, _, _ = counted(reduction(fenced=True, reset_by_all=True), schedule)
    assert ("race", "counter") in {(finding.kind, finding.array) for finding in report.findings}


# --- negative indices ----------------------------------------------------------------------------------------------


@cuda.jit
def last_by_a_literal(x, y):
    if cuda.threadIdx.x == 0:
        x[-1] += 2
        y[0, -1] = x[-2]
        cuda.atomic.add(y, (1, -2), 2)
        x[0] = cuda.ldcg(
            x,
            -1,
        )


def test_a_negative_index_written_as_a_number_is_meant():
    assert sanitize(last_by_a_literal)[1, 32](floats(5), np.zeros((2, 3))).findings == ()


@cuda.jit
def signalled_at_the_end(message, flag, out):
    state = cuda.shared.array(2, int32)
    cuda.atomic.exch(state, -1, 5)
    if cuda.blockIdx.x == 0:
        message[0] = state[1]
        cuda.threadfence()
        cuda.atomic.exch(flag, -1, 1)
    else:
        while cuda.ldcv(flag, -1) == 0:
            pass
        out[0] = message[0]


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
def test_atomics_and_ldcv_take_it_for_the_element_that_it_is(schedule):
    out = np.zeros(1)
    assert sanitize(signalled_at_the_end, schedule=schedule)[2, 1](np.zeros(1), np.zeros(2, np.int32), out).ok
    assert out[0] == 5


def test_a_computed_one_beside_it_is_not():
    @cuda.jit
    def kernel(x):
        i = cuda.threadIdx.x
        x[i] = x[-1] + x[i - 2]
        cuda.ldcv(x, i - 3)

    findings = sanitize(kernel)[1, 1](floats(5)).findings
    assert [finding.kind for finding in findings] == ["negative-index"] * 2
    assert [finding.index for finding in findings] == [(-2,), (-3,)]


def test_a_literal_out_of_bounds_is_found():
    @cuda.jit
    def kernel(x):
        x[-6] = 1

    (finding,) = sanitize(kernel)[1, 1](floats(5)).findings
    assert finding.kind == "out-of-bounds"


# --- loads that bypass the caches ----------------------------------------------------------------------------------


def signalled(store):
    @cuda.jit
    def kernel(message, flag, out):
        if cuda.blockIdx.x == 0:
            message[0] = 7
            cuda.threadfence()
            store(flag)
        else:
            while cuda.ldcv(flag, 0) == 0:
                pass
            out[0] = message[0]

    return kernel


@cuda.jit(device=True)
def by_exchange(flag):
    cuda.atomic.exch(flag, 0, 1)


@cuda.jit(device=True)
def plainly(flag):
    flag[0] = 1


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
def test_ldcv_may_poll_what_an_atomic_stores(schedule):
    out = np.zeros(1, np.float32)
    kernel = signalled(by_exchange)
    assert sanitize(kernel, schedule=schedule)[2, 1](floats(1), np.zeros(1, np.int32), out).findings == ()
    assert out[0] == 7


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
def test_ldcv_races_with_a_plain_store(schedule):
    report = sanitize(signalled(plainly), schedule=schedule)[2, 1](floats(1), np.zeros(1, np.int32), floats(1))
    assert {(finding.kind, finding.array) for finding in report.findings} == {("race", "flag")}


# --- stores of one value -------------------------------------------------------------------------------------------


def test_stores_of_one_value_are_told_and_are_ok():
    @cuda.jit
    def kernel(x, found):
        if x[cuda.grid(1)] > 0:
            found[0] = 1

    report = sanitize(kernel)[2, 32](floats(64), np.zeros(1, np.int32))
    assert report.ok
    (finding,) = report.findings
    assert finding.benign


def test_stores_of_two_values_are_not_ok():
    @cuda.jit
    def kernel(x, found):
        found[0] = x[cuda.grid(1)]

    assert not sanitize(kernel)[2, 32](floats(64), np.zeros(1)).ok


# --- locks -----------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def take(locks, number):
    while True:
        if cuda.atomic.cas(locks, number, 0, 1) == 0:
            break
        cuda.nanosleep(100)


@cuda.jit(device=True)
def free(locks, number):
    cuda.threadfence()
    cuda.atomic.exch(locks, number, 0)


@cuda.jit
def both_orders(locks, guarded):
    first = cuda.blockIdx.x % 2
    if guarded:
        take(locks, 2)
    take(locks, first)
    take(locks, 1 - first)
    free(locks, first)
    free(locks, 1 - first)
    if guarded:
        free(locks, 2)


def test_a_lock_around_both_makes_any_order_right():
    assert sanitize(both_orders)[4, 1](np.zeros(3, np.int32), True).ok
    assert {f.kind for f in sanitize(both_orders)[4, 1](np.zeros(3, np.int32), False).findings} == {"lock-order"}


@cuda.jit
def both_orders_from_the_end(locks):
    if cuda.blockIdx.x == 0:
        take(locks, 0)
        while cuda.atomic.cas(locks, -1, 0, 1) != 0:
            pass
        free(locks, 0)
    else:
        while cuda.atomic.cas(locks, -1, 0, 1) != 0:
            pass
        take(locks, 0)
        free(locks, 0)
    cuda.atomic.exch(locks, -1, 0)


def test_a_lock_may_have_a_negative_index():
    assert [f.kind for f in sanitize(both_orders_from_the_end)[2, 1](np.zeros(3, np.int32)).findings] == ["lock-order"]


@cuda.jit
def beside_a_lock_outside(locks):
    """Thread 0 takes a lock that there is not, and then lock 1; thread 32 takes lock 1 and then lock 0."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.exch(locks, 9, 1) == 0:
            pass
        take(locks, 1)
        free(locks, 1)
    if cuda.threadIdx.x == 32:
        take(locks, 1)
        take(locks, 0)
        free(locks, 0)
        free(locks, 1)


def test_an_atomic_out_of_bounds_takes_no_lock():
    report = sanitize(beside_a_lock_outside)[1, 64](np.zeros(4, np.int32))
    assert [finding.kind for finding in report.findings] == ["out-of-bounds"]


@cuda.jit
def one_at_a_time(locks, nested):
    """Takes two locks, in one order in even blocks and in the other in odd ones; `nested`: holds both at once."""
    first = cuda.blockIdx.x % 2
    take(locks, first)
    if not nested:
        free(locks, first)
    take(locks, 1 - first)
    free(locks, 1 - first)
    if nested:
        free(locks, first)


def test_locks_that_no_thread_holds_together_may_have_any_order():
    assert sanitize(one_at_a_time)[4, 1](np.zeros(2, np.int32), False).ok
    assert not sanitize(one_at_a_time)[4, 1](np.zeros(2, np.int32), True).ok


@cuda.jit
def both_orders_in_turn(locks, together):
    """Takes two locks in both orders, one after the other; `together`: all blocks do."""
    if cuda.blockIdx.x == 0 or together:
        for first in range(2):
            take(locks, first)
            take(locks, 1 - first)
            free(locks, 1 - first)
            free(locks, first)


def test_one_thread_alone_may_take_locks_in_any_order():
    assert sanitize(both_orders_in_turn)[4, 1](np.zeros(2, np.int32), False).ok
    assert not sanitize(both_orders_in_turn)[4, 1](np.zeros(2, np.int32), True).ok


@cuda.jit
def an_order_for_each_half(locks, apart):
    """Block 0 takes lock 0 first, then block 1 takes lock 1 first; `apart`: with a barrier of the grid between them."""
    for turn in range(2):
        if cuda.blockIdx.x == turn:
            take(locks, turn)
            take(locks, 1 - turn)
            free(locks, 1 - turn)
            free(locks, turn)
        if apart:
            cuda.cg.this_grid().sync()


def test_a_barrier_of_the_grid_keeps_the_orders_apart():
    assert sanitize(an_order_for_each_half)[2, 1](np.zeros(2, np.int32), True).ok
    assert not sanitize(an_order_for_each_half)[2, 1](np.zeros(2, np.int32), False).ok


@cuda.jit
def tried(locks, done):
    first = cuda.blockIdx.x % 2
    waiting = True
    while waiting:
        if cuda.atomic.cas(locks, first, 0, 1) == 0:
            if cuda.atomic.cas(locks, 1 - first, 0, 1) == 0:
                cuda.atomic.add(done, 0, 1)
                waiting = False
                cuda.atomic.exch(locks, 1 - first, 0)
            cuda.atomic.exch(locks, first, 0)


def test_locks_that_are_only_tried_may_have_any_order():
    done = np.zeros(1, np.int32)
    assert sanitize(tried)[4, 1](np.zeros(2, np.int32), done).ok
    assert done[0] == 4


@cuda.jit
def one_after_the_other(locks, barrier_between):
    if cuda.threadIdx.x == 0:
        take(locks, 0)
        take(locks, 1)
        free(locks, 1)
        free(locks, 0)
    if barrier_between:
        cuda.syncthreads()
    if cuda.threadIdx.x == 32:
        take(locks, 1)
        take(locks, 0)
        free(locks, 0)
        free(locks, 1)


def test_a_barrier_keeps_the_orders_apart():
    assert sanitize(one_after_the_other)[1, 64](np.zeros(2, np.int32), True).ok
    assert not sanitize(one_after_the_other)[1, 64](np.zeros(2, np.int32), False).ok


@cuda.jit
def by_a_table(locks, table):
    """Takes both locks, first the one that the table has for the warp and the phase; -1: takes none."""
    for phase in range(table.shape[1]):
        if cuda.threadIdx.x % 32 == 0:
            first = table[cuda.threadIdx.x // 32, phase]
            if first >= 0:
                take(locks, first)
                take(locks, 1 - first)
                free(locks, 1 - first)
                free(locks, first)
        cuda.syncthreads()


@pytest.mark.parametrize("schedule", ["forward", "reverse", 3])
@pytest.mark.parametrize(
    ("table", "together"),
    [
        ([[0, 0], [-1, 1]], True),
        ([[0, 0, -1], [-1, -1, 1]], False),
        ([[0] * 6, [-1] * 5 + [1]], True),
        ([[0] * 5 + [-1], [-1] * 5 + [1]], False),
        ([*[[0, -1]] * 4, [-1, 0], [-1, 1]], True),  # four warps in a phase, a fifth in the next
    ],
)
def test_each_phase_s_orders_count_however_often_the_locks_were_taken_before(table, together, schedule):
    table = np.array(table)
    report = sanitize(by_a_table, schedule=schedule)[1, 32 * len(table)](np.zeros(2, np.int32), table)
    assert [finding.kind for finding in report.findings] == ["lock-order"] * together


# --- loops with barriers -------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def meet(shared):
    cuda.syncthreads()
    return shared[0]


@cuda.jit
def loops_of_own_length(out):
    thread = cuda.threadIdx.x
    shared = cuda.shared.array(1, int32)
    if thread == 0:
        shared[0] = 3
    steps = 0
    for _ in range(2 + thread // 32):  # of another length for each warp, with no barrier inside
        steps += 1
    for _ in range(2):
        for _ in range(3):
            steps += meet(shared)
        while steps % 7:
            steps += 1
        cuda.syncthreads()
    for turn in range(3):
        cuda.syncthreads()
        if turn == thread // 32:
            steps += 1
            continue
        steps += 2
    out[thread] = steps


def test_loops_without_barriers_may_have_any_number_of_turns():
    assert sanitize(loops_of_own_length)[1, 96](np.zeros(96, np.int32)).findings == ()


@cuda.jit(device=True)
def halved(steps):
    return steps // 2


@cuda.jit
def a_barrier_behind_a_loop(out):
    thread = cuda.threadIdx.x
    steps, turns = thread, 0
    while steps:  # of another length for each thread; the call might have had a barrier inside
        steps = halved(steps)
        turns += 1
    cuda.syncthreads()
    out[thread] = turns


def test_the_turns_of_a_loop_do_not_count_behind_it():
    out = np.zeros(64, np.int32)
    assert sanitize(a_barrier_behind_a_loop)[1, 64](out).findings == ()
    assert out.tolist() == [thread.bit_length() for thread in range(64)]
