"""Thread-block clusters in the simulator: ranks, the barrier, shared memory of other blocks, and what is refused."""

import numpy as np
import pytest
from numba import cuda, float32, float64

from normlab.engine.device.clusters import (
    cluster_arrive,
    cluster_arrive_shared,
    cluster_rank,
    cluster_sync,
    cluster_wait,
    load_from_block,
    store_to_block,
)
from normlab.sim import DeadlockError, SimulationError, sanitize, simulate, trace

SCHEDULES = ("forward", "reverse", 3)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


@cuda.jit
def cluster_sum(x, out):
    """Each block tells all blocks of its cluster its element of x, and adds up what it was told."""
    parts = cuda.shared.array(16, float32)
    thread = cuda.threadIdx.x
    cluster_sync()
    if thread < out.shape[1]:
        store_to_block(parts, cluster_rank(), x[cuda.blockIdx.x], thread)
    cluster_sync()
    if thread == 0:
        for rank in range(out.shape[1]):
            out[cuda.blockIdx.x, rank] = parts[rank]


@every_schedule
@pytest.mark.parametrize("cluster", [1, 2, 4, 8, 16])
def test_every_block_gets_the_values_of_its_cluster_in_order_of_rank(cluster, schedule):
    x, out = np.arange(32, dtype=np.float32), np.zeros((32, cluster), np.float32)
    simulate(cluster_sum, schedule, cluster)[32, 33](x, out)
    np.testing.assert_array_equal(out, np.repeat(x.reshape(-1, cluster), cluster, axis=0))


@cuda.jit
def ranks(out):
    cluster_sync()
    out[cuda.blockIdx.z, cuda.blockIdx.y, cuda.blockIdx.x] = cluster_rank()
    cluster_sync()


def test_clusters_lie_along_x():
    out = np.full((2, 3, 6), -1)
    simulate(ranks, cluster=3)[(6, 3, 2), 1](out)
    assert (out == [0, 1, 2, 0, 1, 2]).all()


@cuda.jit
def neighbours_rows(x, out):
    """The row that lies above in the neighbour's tile, read in a view of it."""
    tile = cuda.shared.array((2, 32), float64)
    thread = cuda.threadIdx.x
    tile[0, thread] = x[cuda.blockIdx.x, thread]
    tile[1, thread] = -x[cuda.blockIdx.x, thread]
    cluster_sync()
    rank = cluster_rank()
    lower = tile[1]
    out[0, cuda.blockIdx.x, thread] = load_from_block(tile, (0, 31 - thread), rank ^ 1)
    out[1, cuda.blockIdx.x, thread] = load_from_block(lower, thread, rank ^ 1)
    cluster_sync()


@every_schedule
def test_arrays_of_two_dimensions_and_views_are_reached(schedule):
    x, out = np.random.default_rng(0).normal(size=(4, 32)), np.zeros((2, 4, 32))
    for run in (simulate, trace, sanitize):
        run(neighbours_rows, schedule=schedule, cluster=2)[4, 32](x, out)
        partner = x[[1, 0, 3, 2]]
        np.testing.assert_array_equal(out, [partner[:, ::-1], -partner])


@cuda.jit
def into_dynamic_memory(x, out):
    cluster_sync()
    if cluster_rank() == 0:  # a block that has not named the array yet has the memory all the same
        early = cuda.shared.array(0, float32)
        store_to_block(early, 1, x[0], 1)
    cluster_sync()
    if cluster_rank() == 1:
        late = cuda.shared.array(0, float64)
        out[0] = late.view(np.float32)[1]
    cluster_sync()


@every_schedule
def test_dynamic_memory_is_reached_before_its_block_has_named_it(schedule):
    out = np.zeros(1, np.float32)
    simulate(into_dynamic_memory, schedule, 2)[2, 4, 0, 1024](np.float32([5]), out)
    assert out[0] == 5


@cuda.jit
def only_some_blocks_go_on(x, out):
    cluster_sync()
    if cluster_rank() == 1:
        return
    cluster_sync()
    out[cuda.blockIdx.x] = x[cuda.blockIdx.x]


@every_schedule
def test_the_barrier_does_not_wait_for_threads_that_have_returned(schedule):
    x, out = np.arange(1, 5, dtype=np.float32), np.zeros(4, np.float32)
    simulate(only_some_blocks_go_on, schedule, 4)[4, 32](x, out)
    assert out.tolist() == [1, 0, 3, 4]


@cuda.jit
def block_barrier_against_cluster_barrier():
    if cuda.threadIdx.x < 32:
        cluster_sync()
    else:
        cuda.syncthreads()


@cuda.jit
def grid_barrier_against_cluster_barrier():
    if cluster_rank() == 0:
        cluster_sync()
    else:
        cuda.cg.this_grid().sync()


@pytest.mark.parametrize("kernel", [block_barrier_against_cluster_barrier, grid_barrier_against_cluster_barrier])
def test_a_barrier_of_the_cluster_that_not_all_threads_reach_is_a_deadlock(kernel):
    first = kernel.py_func.__code__.co_firstlineno
    with pytest.raises(DeadlockError) as info:
        simulate(kernel, cluster=2)[2, 64]()
    assert f"at cluster_sync, {__file__}:{first + 3}: cluster_sync()" in str(info.value)
    assert "more threads of its cluster to arrive at its barrier" in str(info.value)


@cuda.jit
def spins_on_its_neighbour(flags):
    cluster_sync()
    if cuda.threadIdx.x == 0:
        if cluster_rank() == 0:
            while cuda.atomic.add(flags, 0, 0) == 0:
                pass
        else:
            cuda.atomic.add(flags, 0, 1)
    cluster_sync()
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(flags, 1, 1)


@every_schedule
def test_blocks_of_a_cluster_run_in_turns(schedule):
    flags = np.zeros(2, np.int32)
    simulate(spins_on_its_neighbour, schedule, 2)[2, 32](flags)
    assert flags.tolist() == [1, 2]


@cuda.jit
def too_late(x):
    parts = cuda.shared.array(2, float32)
    cluster_sync()
    if cluster_rank() == 1:
        store_to_block(parts, 0, x[0], 0)


def test_the_memory_of_a_block_that_has_ended_is_gone():
    with pytest.raises(SimulationError, match=r"block \(0, 0, 0\), rank 0 of the cluster, has ended, and its shared"):
        simulate(too_late, cluster=2)[2, 1](np.ones(1, np.float32))


@cuda.jit
def out_of_the_cluster(x):
    parts = cuda.shared.array(2, float32)
    store_to_block(parts, 0, x[0], 2)


@cuda.jit
def not_in_shared_memory(x):
    store_to_block(x, 0, x[0], 0)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (out_of_the_cluster, "there is no block 2 in a cluster of 2: ranks go from 0 on"),
        (not_in_shared_memory, "only shared memory can be reached in another block of the cluster"),
    ],
)
def test_what_cannot_be_reached_is_refused(kernel, text):
    with pytest.raises(SimulationError, match=text):
        simulate(kernel, cluster=2)[2, 1](np.ones(1, np.float32))


@pytest.mark.parametrize(
    ("cluster", "error", "text"),
    [
        (0, ValueError, "a cluster has 1 to 16 blocks, not 0"),
        (17, ValueError, "a cluster has 1 to 16 blocks, not 17"),
        (True, TypeError, "cluster is a number of blocks, an int, not the bool True"),
        ((2, 1, 1), TypeError, "cluster is a number of blocks, an int, not the tuple"),
        (4, ValueError, r"grid \(6, 1, 1\) has 6 blocks along x, no multiple of the cluster's 4"),
    ],
)
@pytest.mark.parametrize("run", [simulate, trace, sanitize])
def test_a_cluster_that_no_gpu_has_is_refused(run, cluster, error, text):
    with pytest.raises(error, match=text):
        run(ranks, cluster=cluster)[6, 32]


def test_launches_without_clusters_have_clusters_of_one_block():
    out = np.full((1, 1, 4), -1)
    simulate(ranks)[4, 32](out)
    assert (out == 0).all()


@cuda.jit
def through_global_memory(x, out, distance):
    cluster_sync()
    out[cuda.blockIdx.x] = x[cuda.blockIdx.x]
    cluster_sync()
    x[cuda.blockIdx.x] = out[cuda.blockIdx.x ^ distance]


@every_schedule
def test_the_barrier_orders_global_memory_within_the_cluster_and_not_beyond(schedule):
    watch = sanitize(through_global_memory, schedule=schedule, cluster=2)
    assert watch[4, 1](np.ones(4, np.float32), np.zeros(4, np.float32), 1).ok
    (finding,) = watch[4, 1](np.ones(4, np.float32), np.zeros(4, np.float32), 2).findings
    assert (finding.kind, finding.array) == ("race", "out")
    assert "put them into two kernels, or a grid sync between them" in finding.advice
    assert finding.first.block[0] ^ finding.second.block[0] == 2


@cuda.jit
def two_readers(x, out):
    tile = cuda.shared.array(32, float32)
    thread = cuda.threadIdx.x
    tile[thread] = x[thread]
    cluster_sync()
    out[cuda.blockIdx.x, thread] = load_from_block(tile, thread, 0)
    tile[thread] = 0
    cluster_sync()


@every_schedule
def test_a_report_names_both_blocks(schedule):
    watch = sanitize(two_readers, schedule=schedule, cluster=2)
    (finding,) = watch[2, 32](np.ones(32, np.float32), np.zeros((2, 32), np.float32)).findings
    first = two_readers.py_func.__code__.co_firstlineno
    assert (finding.kind, finding.lines) == ("race", (first + 6, first + 7))
    assert {finding.first.block, finding.second.block} == {(0, 0, 0), (1, 0, 0)}
    assert "block (0, 0, 0)" in str(finding)
    assert "block (1, 0, 0)" in str(finding)


@cuda.jit
def sum_in_halves(x, out):
    parts = cuda.shared.array(16, float32)
    thread = cuda.threadIdx.x
    cluster_arrive()
    value = x[cuda.blockIdx.x]  # meanwhile
    cluster_wait()
    if thread < out.shape[1]:
        store_to_block(parts, cluster_rank(), value, thread)
    cluster_arrive()
    cuda.syncthreads()
    cluster_wait()
    if thread == 0:
        for rank in range(out.shape[1]):
            out[cuda.blockIdx.x, rank] = parts[rank]


@every_schedule
@pytest.mark.parametrize("cluster", [1, 4])
def test_the_barrier_in_two_halves(cluster, schedule):
    x, out = np.arange(8, dtype=np.float32), np.zeros((8, cluster), np.float32)
    for run in (simulate, trace, sanitize):
        report = run(sum_in_halves, schedule=schedule, cluster=cluster)[8, 65](x, out)
        np.testing.assert_array_equal(out, np.repeat(x.reshape(-1, cluster), cluster, axis=0))
        assert run is not sanitize or not report.findings, str(report)


@cuda.jit
def stored_between_the_halves(x, out):
    parts = cuda.shared.array(2, float32)
    cluster_sync()
    cluster_arrive()
    store_to_block(parts, 0, x[0], cluster_rank() ^ 1)
    cluster_wait()
    out[cuda.blockIdx.x] = parts[0]
    cluster_sync()


@every_schedule
def test_what_is_done_between_the_halves_is_not_ordered(schedule):
    watch = sanitize(stored_between_the_halves, schedule=schedule, cluster=2)
    (finding,) = watch[2, 1](np.ones(1, np.float32), np.zeros(2, np.float32)).findings
    first = stored_between_the_halves.py_func.__code__.co_firstlineno
    assert (finding.kind, finding.lines) == ("race", (first + 5, first + 7))


@cuda.jit
def reached_before_the_wait(x):
    parts = cuda.shared.array(2, float32)
    cluster_arrive()
    store_to_block(parts, 0, x[0], cluster_rank() ^ 1)
    cluster_wait()
    cluster_sync()


@every_schedule
def test_an_arrival_alone_does_not_say_that_the_others_have_begun(schedule):
    watch = sanitize(reached_before_the_wait, schedule=schedule, cluster=2)
    (finding,) = watch[2, 1](np.ones(1, np.float32)).findings
    assert (finding.kind, finding.second.operation) == ("race", "not begun")


@cuda.jit
def fetched_behind_the_barrier(x, out):
    parts = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        parts[0] = x[cuda.blockIdx.x]
    cluster_arrive_shared()
    cluster_wait()
    if cuda.threadIdx.x < out.shape[1]:
        out[cuda.blockIdx.x, cuda.threadIdx.x] = load_from_block(parts, 0, cuda.threadIdx.x)
    cluster_sync()


@every_schedule
def test_what_lies_in_the_block_s_own_memory_is_there_behind_an_arrival_with_it_alone(schedule):
    x, out = np.arange(8, dtype=np.float32), np.zeros((8, 4), np.float32)
    report = sanitize(fetched_behind_the_barrier, schedule=schedule, cluster=4)[8, 33](x, out)
    np.testing.assert_array_equal(out, np.repeat(x.reshape(2, 4), 4, axis=0))
    assert not report.findings, str(report)


@cuda.jit
def arrives_with_what_it_sent(x):
    parts = cuda.shared.array(2, float32)
    cluster_sync()
    store_to_block(parts, 0, x[0], cluster_rank() ^ 1)
    cluster_arrive_shared()
    cluster_wait()


def test_an_arrival_with_the_own_memory_alone_is_refused_to_who_has_stored_in_another_block():
    with pytest.raises(
        SimulationError, match="does not say that a store to another block is done; cluster_arrive does"
    ):
        simulate(arrives_with_what_it_sent, cluster=2)[2, 1](np.ones(1, np.float32))


@cuda.jit
def arrives_twice():
    cluster_arrive()
    cluster_arrive()


@cuda.jit
def waits_without_arrival():
    cluster_wait()


@cuda.jit
def arrives_and_leaves(out):
    cluster_arrive()
    if cluster_rank() == 0:
        cluster_wait()
        out[0] = 1


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (arrives_twice, "cluster_arrive comes a second time, without a cluster_wait"),
        (waits_without_arrival, "cluster_wait comes without a cluster_arrive"),
    ],
)
def test_halves_out_of_turn_are_refused(kernel, text):
    with pytest.raises(SimulationError, match=text):
        simulate(kernel, cluster=2)[2, 1]()


@every_schedule
def test_who_has_arrived_may_leave(schedule):
    out = np.zeros(1)
    simulate(arrives_and_leaves, schedule, 4)[4, 33](out)
    assert out[0] == 1
