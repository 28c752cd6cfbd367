"""Clusters and teams of warps in the vectorised engine: equal to the scheduler, or left to it."""

import numpy as np
import pytest
from numba import cuda, float32
from sim.vectorised.engines import VECTORISED, agree, outcomes

from normlab.engine import (
    cluster_arrive,
    cluster_arrive_shared,
    cluster_rank,
    cluster_sync,
    cluster_wait,
    load_from_block,
    store_to_block,
    team_sync,
)

X = np.random.default_rng(0).normal(size=512).astype(np.float32)
OUT = np.zeros(512, np.float32)


@cuda.jit
def other_blocks_half(x, out):
    shared = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cluster_sync()
    out[i] = load_from_block(shared, 63 - t, 1 - cluster_rank())
    cluster_sync()


@cuda.jit
def sums_in_turn(x, out):
    """Two halves of a barrier, and two buffers in turn: a block may be one turn ahead of the other."""
    shared = cuda.shared.array((2, 64), float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    total = float32(0)
    for turn in range(5):
        shared[turn % 2, t] = x[i] * turn
        cluster_arrive_shared()
        total += x[i]
        cluster_wait()
        for rank in range(2):
            total += load_from_block(shared, (turn % 2, t ^ turn), rank)
        cuda.syncthreads()
    out[i] = total
    cluster_sync()


@cuda.jit
def only_one_buffer(x, out):
    shared = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    total = float32(0)
    for turn in range(3):
        shared[t] = x[i] * turn
        cluster_sync()
        total += load_from_block(shared, t, 1 - cluster_rank())
    out[i] = total
    cluster_sync()


@cuda.jit
def written_between_arrival_and_wait(x, out):
    shared = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = 0
    cluster_sync()
    cluster_arrive()
    shared[t] = x[i]
    cluster_wait()
    out[i] = load_from_block(shared, t, 1 - cluster_rank())
    cluster_sync()


@cuda.jit
def ordered_between_arrival_and_wait(x, out):
    shared = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    cluster_arrive()
    shared[t] = x[i]
    cuda.syncthreads()
    out[i] = shared[63 - t]
    cluster_wait()
    cuda.syncthreads()
    shared[t] = out[i]


@cuda.jit
def stored_into_the_other_block(x, out):
    shared = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    cluster_sync()
    store_to_block(shared, 63 - t, x[i], 1 - cluster_rank())
    cluster_sync()
    out[i] = shared[t]


@cuda.jit
def a_store_that_nobody_waits_for(x, out):
    shared = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    store_to_block(shared, t, x[i], 1 - cluster_rank())
    cluster_arrive_shared()
    cluster_wait()
    out[i] = shared[t]


@cuda.jit
def a_block_that_may_have_ended(x, out):
    shared = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cluster_sync()
    if cluster_rank() == 1:
        out[i] = load_from_block(shared, t, 0)


@cuda.jit
def a_block_that_is_not_there(x, out):
    shared = cuda.shared.array(64, float32)
    cluster_sync()
    out[cuda.grid(1)] = load_from_block(shared, cuda.threadIdx.x, 2)
    cluster_sync()


@cuda.jit
def passed_through_global_memory(x, out):
    i = cuda.grid(1)
    out[i] = x[i]
    cluster_sync()
    value = out[i ^ 64]
    cluster_sync()
    out[i] = value + 1


@cuda.jit
def clusters_of_different_lengths(x, out):
    shared = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for turn in range(1 + cuda.blockIdx.x // 2 % 3):
        shared[t] = x[i] + turn
        cluster_sync()
        out[i] += load_from_block(shared, 63 - t, 1 - cluster_rank())
        cluster_sync()


@cuda.jit
def teams_of_two_warps(x, out):
    shared = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    team = t // 64
    for turn in range(3):
        shared[t] = x[i] * turn
        team_sync(team + 1, 64)
        out[i] += shared[team * 64 + (t * 5 + turn) % 64]
        team_sync(team + 1, 64)
    cuda.syncthreads()
    shared[t] = out[i]
    cuda.syncthreads()
    out[i] = shared[127 - t]


@cuda.jit
def one_team_reads_the_other_s(x, out):
    shared = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    team_sync(t // 64 + 1, 64)
    out[i] = shared[127 - t]


@cuda.jit
def a_team_of_another_size(x, out):
    team_sync(1, 64)
    out[cuda.grid(1)] = x[cuda.grid(1)]


@pytest.mark.parametrize(("kernel", "block", "cluster"), [
    (other_blocks_half, 64, 2), (sums_in_turn, 64, 2), (ordered_between_arrival_and_wait, 64, 2),
    (stored_into_the_other_block, 64, 2), (passed_through_global_memory, 64, 2),
    (clusters_of_different_lengths, 64, 2), (teams_of_two_warps, 128, 1),
], ids=lambda one: getattr(one, "__name__", None))  # fmt: skip
def test_the_engine_runs_it(kernel, block, cluster):
    (said, first), (_, second) = outcomes(kernel, (512 // block, block), X, OUT, cluster=cluster)
    assert said == VECTORISED
    assert first == second
    assert any(first[1])


@pytest.mark.parametrize(("kernel", "block", "cluster", "why"), [
    (only_one_buffer, 64, 2, "threads touch the same element"),
    (written_between_arrival_and_wait, 64, 2, "threads touch the same element"),
    (a_store_that_nobody_waits_for, 64, 2, "cluster_arrive_shared does not say"),
    (a_block_that_may_have_ended, 64, 2, "has ended, and its shared memory with it"),
    (a_block_that_is_not_there, 64, 2, "there is no block 2 in a cluster of 2"),
    (one_team_reads_the_other_s, 128, 1, "threads touch the same element"),
    (a_team_of_another_size, 128, 1, "more than 64 threads come to barrier 1|only some threads of a team"),
], ids=lambda one: getattr(one, "__name__", None))  # fmt: skip
def test_the_scheduler_decides(kernel, block, cluster, why):
    said = str(agree(kernel, (512 // block, block), X, OUT, cluster=cluster))
    assert any(one in said for one in why.split("|")), said


def test_atomics_whose_order_decides_are_the_scheduler_s_in_clusters():
    @cuda.jit
    def in_turn(x, out):
        before = cuda.atomic.add(out, 0, x[cuda.grid(1)])
        cluster_sync()
        out[1 + cuda.grid(1)] = before

    assert "whose order decides" in agree(in_turn, (4, 32), X.repeat(2), OUT, cluster=2)
