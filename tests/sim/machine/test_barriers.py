"""Barriers, grid sync, schedules and hangs: who waits for whom, and how a hang is told."""

import gc
import time

import greenlet
import numpy as np
import pytest
from numba import cuda, float32, int32

from normlab.sim import BarrierError, DeadlockError, SimulationError, sanitize, simulate, trace

SCHEDULES = ("forward", "reverse", 0, 1, 12345)


@cuda.jit
def tree_sum(x, out):
    partial = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    partial[t] = x[cuda.blockIdx.x, t]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = partial[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_tree_sum_is_right_and_bit_for_bit_the_same_in_every_schedule(schedule):
    x = np.random.default_rng(0).standard_normal((3, 128)).astype(np.float32)
    out, forward = np.zeros(3, np.float32), np.zeros(3, np.float32)
    simulate(tree_sum, schedule)[3, 128](x, out)
    simulate(tree_sum)[3, 128](x, forward)
    np.testing.assert_allclose(out, x.sum(1, dtype=np.float64), rtol=1e-5)
    np.testing.assert_array_equal(out, forward)


@cuda.jit
def order_of_turns(count, log):
    log[count[0]] = cuda.grid(1)
    count[0] += 1


def turns(schedule):
    log = np.zeros(128, np.int64)
    simulate(order_of_turns, schedule)[2, 64](np.zeros(1, np.int64), log)
    return list(log)


def test_the_schedule_permutes_blocks_warps_and_lanes_and_is_deterministic():
    assert turns("forward") == list(range(128))
    assert turns("reverse") == list(range(127, -1, -1))
    assert turns(7) == turns(np.int64(7))
    assert turns(7) not in (turns(8), turns("forward"))
    assert sorted(turns(7)) == list(range(128))
    assert len({turns(seed)[0] // 64 for seed in range(20)}) == 2  # blocks
    assert len({turns(seed)[0] // 32 for seed in range(40)}) == 4  # warps


@pytest.mark.parametrize("schedule", ["backward", 1.5, None, True])
def test_an_unknown_schedule_is_refused_with_the_choices(schedule):
    with pytest.raises(ValueError, match="schedule must be 'forward', 'reverse' or an int seed, not"):
        simulate(tree_sum, schedule)


def test_a_missing_barrier_shows_in_some_schedule():
    @cuda.jit
    def reverse_without_barrier(x):
        shared = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        shared[t] = x[t]
        x[t] = shared[63 - t]

    x = np.arange(64, dtype=np.float32)
    simulate(reverse_without_barrier)[1, 64](x)
    assert np.isnan(x).any()


@pytest.mark.parametrize("block", [33, 100, (16, 8), (4, 4, 8)])
def test_barriers_count_and_vote_over_the_block(block):
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
        out[0, t] = cuda.syncthreads_count(1 if t % 3 == 0 else 0)
        out[1, t] = cuda.syncthreads_and(1 if t >= 0 else 0)
        out[2, t] = cuda.syncthreads_and(1 if t > 0 else 0)
        out[3, t] = cuda.syncthreads_or(1 if t == 5 else 0)
        out[4, t] = cuda.syncthreads_or(1 if t < 0 else 0)

    threads = int(np.prod(block))
    out = np.full((5, threads), -1)
    simulate(kernel, 3)[1, block](out)
    for row, expected in zip(out, (-(-threads // 3), 1, 0, 1, 0), strict=True):
        assert set(row) == {expected}


def test_threads_that_have_returned_take_no_part_in_barriers():
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        if t >= 50:
            return
        out[t] = cuda.syncthreads_count(1)
        if t >= 10:
            return
        out[t] += 100 * cuda.syncthreads_count(1)

    for schedule in SCHEDULES:
        out = np.zeros(70, np.int32)
        simulate(kernel, schedule)[1, 70](out)
        assert list(out) == [1050] * 10 + [50] * 40 + [0] * 20


def test_barriers_at_different_lines_are_one_barrier():
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.x % 2:
            cuda.syncthreads()
        else:
            cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    out = np.zeros(64, np.int32)
    simulate(kernel)[1, 64](out)
    assert out.all()


def test_barriers_of_different_kinds_together_are_an_error_that_names_both_lines():
    @cuda.jit
    def kernel():
        if cuda.threadIdx.x < 7:
            cuda.syncthreads()
        else:
            cuda.syncthreads_or(1)

    with pytest.raises(BarrierError) as info:
        simulate(kernel)[1, 64]()
    first = kernel.py_func.__code__.co_firstlineno
    message = str(info.value)
    assert f"syncthreads at {__file__}:{first + 3}: cuda.syncthreads()" in message
    assert f"syncthreads_or at {__file__}:{first + 5}: cuda.syncthreads_or(1)" in message
    assert "thread (7, 0, 0)" in message


# --- hangs -----------------------------------------------------------------------------------------------------------


@cuda.jit
def barrier_against_warp_operation():
    if cuda.threadIdx.x < 3:
        cuda.syncthreads()
    else:
        cuda.syncwarp()


@cuda.jit
def two_masks():
    if cuda.laneid == 0:
        cuda.syncwarp(0x1F)
    else:
        cuda.syncwarp(0xFFFFFFFF)


@cuda.jit
def grid_sync_against_barrier():
    if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
        cuda.syncthreads()
    else:
        cuda.cg.this_grid().sync()


@cuda.jit
def lock_never_released(lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass


@cuda.jit
def flag_never_set(flag):
    while cuda.ldcv(flag, 0) == 0:
        cuda.nanosleep(100)


@cuda.jit
def polled_by_an_addition_of_zero(flag):
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass


@cuda.jit
def counting_while_it_waits(flag):
    tries = 0
    while cuda.atomic.cas(flag, 0, 1, 2) != 1:
        tries += 1


@cuda.jit
def barrier_while_others_spin(flag):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.max(flag, 0, 0) == 0:
            pass
    cuda.syncthreads()
    flag[0] = 1


@cuda.jit
def fence_and_a_flag_never_set(flag):
    while flag[0] == 0:
        cuda.threadfence()


@cuda.jit
def always_asking_who_is_here(flag):
    while flag[0] == 0:
        cuda.activemask()


HANGS = {
    fence_and_a_flag_never_set: ("a spin loop",),
    always_asking_who_is_here: ("a spin loop",),
    barrier_against_warp_operation: ("syncthreads", "syncwarp"),
    two_masks: ("syncwarp",),
    grid_sync_against_barrier: ("grid sync", "syncthreads"),
    lock_never_released: ("a spin loop",),
    flag_never_set: ("a spin loop",),
    polled_by_an_addition_of_zero: ("a spin loop",),
    counting_while_it_waits: ("a spin loop",),
    barrier_while_others_spin: ("a spin loop", "syncthreads"),
}


@pytest.mark.parametrize("kernel", HANGS, ids=lambda kernel: kernel.py_func.__name__)
@pytest.mark.parametrize("schedule", ["forward", "reverse", 4])
def test_a_hang_is_found_at_once_and_names_operations_and_lines(kernel, schedule):
    arguments = [np.zeros(1, np.int32)] * kernel.py_func.__code__.co_argcount
    start = time.process_time()
    with pytest.raises(DeadlockError) as info:
        simulate(kernel, schedule)[4, 64](*arguments)
    assert time.process_time() - start < 2
    message = str(info.value)
    assert f"in kernel {kernel.py_func.__name__!r}" in message
    for operation in HANGS[kernel]:
        assert f"at {operation}, {__file__}:" in message
    assert isinstance(info.value, SimulationError)


def test_a_deadlock_says_how_many_wait_where_for_whom():
    @cuda.jit
    def kernel(n):
        t = cuda.threadIdx.x
        if t >= 40:
            return
        if t < n:
            cuda.syncthreads()
        else:
            cuda.syncwarp(0xFFFFFFFF)
            if t % 2:
                cuda.shfl_sync(0xFFFFFFFF, t, 1)
            else:
                cuda.syncthreads()

    first = kernel.py_func.__code__.co_firstlineno
    with pytest.raises(DeadlockError) as info:
        simulate(kernel)[(2, 1), (64, 1)](3)
    assert str(info.value) == (
        "deadlock in kernel 'kernel':\n"
        f"  3 threads at syncthreads, {__file__}:{first + 6}: cuda.syncthreads()"
        "  (e.g. block (0, 0, 0), thread (0, 0, 0))\n"
        "    waits for 33 more threads of its block to reach a barrier\n"
        f"  29 threads at syncwarp, {__file__}:{first + 8}: cuda.syncwarp(0xFFFFFFFF)"
        "  (e.g. block (0, 0, 0), thread (3, 0, 0))\n"
        "    waits for lanes 0, 1, 2 (mask 0xffffffff)\n"
        f"  4 threads at syncthreads, {__file__}:{first + 12}: cuda.syncthreads()"
        "  (e.g. block (0, 0, 0), thread (32, 0, 0))\n"
        "    waits for 33 more threads of its block to reach a barrier\n"
        f"  4 threads at shfl_sync, {__file__}:{first + 10}: cuda.shfl_sync(0xFFFFFFFF, t, 1)"
        "  (e.g. block (0, 0, 0), thread (33, 0, 0))\n"
        "    waits for lanes 0, 2, 4, 6 (mask 0xffffffff)\n"
        "  24 of the threads have returned"
    )


@pytest.mark.parametrize("schedule", ["forward", "reverse", 4])
def test_a_fence_is_a_turn_of_a_spin_loop(schedule):
    @cuda.jit
    def kernel(flag, out):
        if cuda.blockIdx.x == 0:
            while flag[0] == 0:
                cuda.threadfence()
            out[cuda.threadIdx.x] = 1
        elif cuda.threadIdx.x == 0:
            flag[0] = 1

    out = np.zeros(64)
    simulate(kernel, schedule)[2, 64](np.zeros(1), out)
    assert out.all()


@cuda.jit
def largest_in_a_for_loop(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.max(out, 0, x[i])


@cuda.jit
def largest_in_a_while_loop(x, out):
    i = cuda.grid(1)
    while i < x.size:
        value = x[i]
        cuda.atomic.max(out, 0, value)
        i += cuda.gridsize(1)


@cuda.jit
def so_many_tries(x, out):
    tries = 0
    while True:
        if cuda.atomic.max(out, 0, x[0]) < 0:
            break
        tries += 1
        if tries == x.size:
            break


@pytest.mark.parametrize("kernel", [largest_in_a_for_loop, largest_in_a_while_loop, so_many_tries])
@pytest.mark.parametrize("threads", [1, 2])
def test_many_atomics_that_change_nothing_are_no_livelock(kernel, threads):
    x, out = np.zeros(500, np.int32), np.zeros(1, np.int32)
    x[0] = 7
    simulate(kernel, engine="scheduler")[1, threads](x, out)
    assert out[0] == 7
    assert sanitize(kernel, engine="scheduler")[1, threads](x, out).ok


def test_many_fences_are_no_spin_loop():
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        for _ in range(200):
            out[i] += 1
            cuda.threadfence()
        while out[i] < 400:
            out[i] += 1
            cuda.threadfence_block()
            cuda.activemask()

    out = np.zeros(64)
    simulate(kernel)[2, 32](out)
    assert (out == 400).all()


def test_no_thread_outlives_a_launch_that_failed():
    def alive():
        gc.collect()
        return sum(issubclass(type(o), greenlet.greenlet) and not o.dead for o in gc.get_objects())

    greenlet.getcurrent()  # the test's own, which the first question makes
    before = alive()
    unwound = []

    @cuda.jit
    def kernel():
        try:
            if cuda.threadIdx.x < 3:
                cuda.syncthreads()
            else:
                cuda.syncwarp()
        finally:
            unwound.append(cuda.threadIdx.x)

    with pytest.raises(DeadlockError):
        simulate(kernel)[1, 64]()
    assert len(unwound) == 64
    assert alive() == before


# --- locks and grids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_spin_lock_lets_every_thread_through(schedule):
    @cuda.jit
    def kernel(lock, count):
        done = False
        while not done:
            if cuda.atomic.cas(lock, 0, 0, 1) == 0:
                count[0] += 1
                cuda.threadfence()
                cuda.atomic.exch(lock, 0, 0)
                done = True

    count = np.zeros(1, np.int64)
    simulate(kernel, schedule)[3, 40](np.zeros(1, np.int32), count)
    assert count[0] == 120


def test_a_loop_that_counts_its_turns_by_atomics_lets_others_run():
    @cuda.jit
    def kernel(turns, flag):
        if cuda.threadIdx.x == 0:
            while flag[0] == 0:
                cuda.atomic.add(turns, 0, 1)
        else:
            flag[0] = 1

    turns = np.zeros(1, np.int32)
    simulate(kernel)[1, 2](turns, np.zeros(1, np.int32))
    assert turns[0] > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_thread_may_spin_until_another_block_stores(schedule):
    @cuda.jit
    def kernel(ready, out):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            while cuda.ldcv(ready, (block + 1) % 4) == 0 and block != 3:
                pass
            out[block] = ready.sum()
            ready[block] = 1
        cuda.syncthreads()

    ready, out = np.zeros(4, np.int32), np.zeros(4, np.int32)
    simulate(kernel, schedule)[4, 33](ready, out)
    assert ready.all()
    assert out[0] == 3


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_grid_sync_is_reached_by_every_block_before_any_goes_on(schedule):
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        grid = cuda.cg.this_grid()
        for step in range(3):
            x[i] = i + step
            cuda.syncthreads()
            grid.sync()
            if i >= 90:
                return
            out[step, i] = x[(i + 31) % 90]
            grid.sync()

    out = np.zeros((3, 96), np.int64)
    simulate(kernel, schedule)[3, 32](np.zeros(96), out)
    for step in range(3):
        assert list(out[step, :90]) == [(i + 31) % 90 + step for i in range(90)]


def test_the_grid_group_knows_its_size():
    @cuda.jit
    def kernel(out):
        out[0] = cuda.cg.this_grid().size

    out = np.zeros(1, np.int64)
    simulate(kernel)[(2, 3), (4, 5)](out)
    assert out[0] == 120


@pytest.mark.parametrize("world", [simulate, sanitize, trace])
def test_more_blocks_than_run_at_once_may_not_wait_for_each_other(world):
    @cuda.jit(device=True)
    def wait():
        cuda.cg.this_grid().sync()

    @cuda.jit
    def kernel(out):
        wait()
        out[cuda.blockIdx.x] = 1

    out = np.zeros(5000)
    with pytest.raises(ValueError, match="has 265 blocks; an H200 holds 264 of them at once"):
        world(kernel)[265, 1024](out)
    with pytest.raises(ValueError, match="has 265 blocks; an H200 holds 264 of them at once"):
        world(kernel)[265, 32, 0, 100_000](out)
    assert not out.any()
    world(kernel)[264, 32, 0, 100_000](out)
    assert out.sum() == 264


def test_the_last_block_sees_what_the_others_wrote():
    @cuda.jit
    def kernel(x, partial, finished, out):
        last = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            partial[cuda.blockIdx.x] = x[cuda.blockIdx.x]
            cuda.threadfence()
            last[0] = cuda.atomic.inc(finished, 0, cuda.gridDim.x - 1) == cuda.gridDim.x - 1
        cuda.syncthreads()
        if last[0] and cuda.threadIdx.x == 0:
            for i in range(cuda.gridDim.x):
                out[0] += partial[i]

    out, finished = np.zeros(1), np.zeros(1, np.uint32)
    simulate(kernel, 2)[5, 32](np.arange(5.0), np.zeros(5), finished, out)
    assert out[0] == 10
    assert finished[0] == 0


def test_shared_int32_flags_are_per_block():
    @cuda.jit
    def kernel(out):
        flag = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            flag[0] = cuda.blockIdx.x
        cuda.cg.this_grid().sync()
        out[cuda.grid(1)] = flag[0]

    out = np.zeros(8, np.int32)
    simulate(kernel)[4, 2](out)
    assert list(out) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_barrier_that_is_given_a_bool_is_refused_as_numba_refuses_it():
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = cuda.syncthreads_count(out[cuda.threadIdx.x] > 0)

    with pytest.raises(TypeError, match="syncthreads_count takes an int: Numba compiles no kernel"):
        simulate(kernel)[1, 32](np.ones(32))
