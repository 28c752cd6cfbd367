"""Clusters and teams of warps in the vectorised engine: equal to the scheduler, or left to it."""

import numpy as np
import pytest
from numba import complex64, cuda, float32
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
def a_block_that_has_ended(x, out):
    shared = cuda.shared.array(64, float32)
    if cluster_rank() == 1:
        return
    cluster_sync()
    store_to_block(shared, cuda.threadIdx.x, x[cuda.grid(1)], 1)
    cluster_sync()


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
def teams_apart(x, out):
    """Teams of one warp and of three, which pass different numbers of barriers of their own."""
    shared = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    if t < 32:
        out[i] = shared[t]
        out[i] += cuda.shfl_xor_sync(0xFFFFFFFF, out[i], 1)
        team_sync(1, 32)
        shared[t ^ 1] = out[i]
    else:
        for turn in range(3):
            team_sync(2, 96)
            out[i] += shared[32 + (t * 5 + turn) % 96]
            team_sync(2, 96)
            shared[t] = out[i]
    out[i] += x[i]
    if t < 32:
        team_sync(1, 32)
        out[i] += shared[t]
    cuda.syncthreads()
    out[i] += shared[127 - t]
    if t >= 32:
        team_sync(3, 96)
    out[i] *= 2


@cuda.jit
def sums_in_the_order_of_blocks(x, out):
    i = cuda.grid(1)
    cuda.atomic.add(out, 0, x[i])
    cluster_sync()
    cuda.atomic.add(out, 0, x[511 - i] * 7)
    before = cuda.atomic.add(out, 1, x[i])
    if i > 1:
        out[i] = before


@cuda.jit
def sums_in_the_order_of_teams(x, out):
    """The second team of a block comes to the sum first, because the first team waits in its barrier until then."""
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t < 64:
        team_sync(1, 64)
    before = cuda.atomic.add(out, 0, x[i])
    if i > 0:
        out[i] = before


@cuda.jit
def ranks_that_differ_between_lanes(x, out):
    shared = cuda.shared.array((4, 64), complex64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for k in range(4):
        shared[k, t] = complex(x[i], k)
    cluster_sync()
    total = 0j
    for k in range(4):
        total += load_from_block(shared[k], 63 - t, (t // 3 + k) % 4)
        if t % 5 == k:
            total += load_from_block(shared, (k, t), (cluster_rank() + 1) % 4)
    cluster_arrive()
    out[i] = total.real
    cluster_wait()
    store_to_block(shared, (1, t), total, (cluster_rank() + t) % 4)
    cluster_sync()
    out[i] += shared[1, t].imag


@cuda.jit
def the_first_block_goes_the_second_way(x, out):
    """The second array is the first that the scheduler reaches in another block; the third is made only then."""
    first = cuda.shared.array(64, float32)
    second = cuda.shared.array(64, float32)
    t, i, rank = cuda.threadIdx.x, cuda.grid(1), cluster_rank()
    cluster_sync()
    if rank == 1:
        store_to_block(first, t, x[i], 0)
    else:
        store_to_block(second, t, x[i], 1)
    cluster_sync()
    third = cuda.shared.array(0, float32)
    third[t] = second[t] if rank else first[t]
    out[i] = third[t]


@cuda.jit
def a_number_of_two_teams(x, out):
    if cuda.threadIdx.x < 64:
        team_sync(1, 64)
    else:
        team_sync(1, 64)
    out[cuda.grid(1)] = x[cuda.grid(1)]


@cuda.jit
def a_team_that_grows(x, out):
    if cuda.threadIdx.x < 32:
        team_sync(1, 32)
    team_sync(1, 128)
    out[cuda.grid(1)] = x[cuda.grid(1)]


@cuda.jit
def halves_of_two_warps(x, out):
    t = cuda.threadIdx.x
    if t % 32 < 16:
        if t < 64:
            team_sync(1, 32)
        out[cuda.grid(1)] = x[cuda.grid(1)]


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


RUN = (
    (other_blocks_half, 64, 2), (sums_in_turn, 64, 2), (ordered_between_arrival_and_wait, 64, 2),
    (stored_into_the_other_block, 64, 2), (passed_through_global_memory, 64, 2),
    (clusters_of_different_lengths, 64, 2), (teams_of_two_warps, 128, 1), (teams_apart, 128, 1),
    (sums_in_the_order_of_blocks, 64, 2), (sums_in_the_order_of_teams, 128, 1),
    (ranks_that_differ_between_lanes, 64, 4), (the_first_block_goes_the_second_way, 64, 2),
)  # fmt: skip


@pytest.mark.parametrize(("kernel", "block", "cluster"), RUN, ids=lambda one: getattr(one, "__name__", None))
def test_the_engine_runs_it(kernel, block, cluster):
    (said, first), (_, second) = outcomes(kernel, (512 // block, block, 0, 256), X, OUT, cluster=cluster)
    assert said == VECTORISED
    assert first == second
    assert any(first[1])


@pytest.mark.parametrize(("kernel", "block", "cluster", "why"), [
    (only_one_buffer, 64, 2, "threads touch the same element"),
    (written_between_arrival_and_wait, 64, 2, "threads touch the same element"),
    (a_store_that_nobody_waits_for, 64, 2, "cluster_arrive_shared does not say"),
    (a_block_that_may_have_ended, 64, 2, "has ended, and its shared memory with it"),
    (a_block_that_has_ended, 64, 2, "has ended, and its shared memory with it"),
    (a_block_that_is_not_there, 64, 2, "there is no block 2 in a cluster of 2"),
    (one_team_reads_the_other_s, 128, 1, "threads touch the same element"),
    (a_number_of_two_teams, 128, 1, "more than 64 threads come to barrier 1"),
    (a_team_that_grows, 128, 1, "a thread that waits for 128 at barrier 1 meets one that waits for 32"),
    (halves_of_two_warps, 128, 1, "only some lanes of a warp come to barrier 1"),
    (a_team_of_another_size, 128, 1, "more than 64 threads come to barrier 1|only some threads of a team"),
], ids=lambda one: getattr(one, "__name__", None))  # fmt: skip
def test_the_scheduler_decides(kernel, block, cluster, why):
    said = str(agree(kernel, (512 // block, block), X, OUT, cluster=cluster))
    assert any(one in said for one in why.split("|")), said
