"""Sums over the row group: the warps of a block, and of all blocks of a cluster, with one barrier."""

from functools import cache

import numpy as np
import pytest

from normlab import oracle
from normlab.engine import (
    cluster_arrive_shared,
    cluster_rank,
    cluster_sync,
    cluster_wait,
    cuda,
    float32,
    launch,
    use_gpu,
    using,
)
from normlab.sim import sanitize
from normlab.stages.row_group import collector, leave

WARPS = [1, 2, 3, 5, 16, 32]
BLOCKS = [1, 2, 4]
row_groups = pytest.mark.parametrize(("warps", "blocks"), [(warps, blocks) for warps in WARPS for blocks in BLOCKS])


def needs_clusters(blocks):
    if blocks > 1 and use_gpu() and cuda.get_current_device().compute_capability < (9, 0):
        pytest.skip("clusters need compute capability 9.0")


@cache
def exchange(warps, blocks, turns=3):
    """A kernel: a few turns of one barrier each; in each, every warp's value is left and the sum of all collected."""
    steps, fetch, add_up = collector(warps, blocks)
    places = 2 * steps

    @cuda.jit
    def kernel(values, results):
        """values: (turns, 2, clusters, members); results: (turns, 2, grid, threads)."""
        exchange = cuda.shared.array((2, 1, 2, warps), float32)
        parts = cuda.local.array(places, float32)
        warp = cuda.threadIdx.x >> 5
        rank = 0
        cluster = cuda.blockIdx.x
        if blocks > 1:
            rank = cluster_rank()
            cluster //= blocks
        phase = 0
        for turn in range(turns):
            for which in range(2):
                leave(exchange, phase, 0, which, warp, values[turn, which, cluster, rank * warps + warp])
            if blocks > 1:
                cluster_arrive_shared()
                cluster_wait()
            else:
                cuda.syncthreads()
            for which in range(2):
                fetch(parts, which * steps, exchange, phase, 0, which)
            for which in range(2):
                results[turn, which, cuda.blockIdx.x, cuda.threadIdx.x] = add_up(parts, which * steps)
            phase = 1 - phase
        if blocks > 1:
            cluster_sync()  # no block ends while others read from its exchange buffer

    return kernel


def problem(warps, blocks, clusters=2, turns=3):
    values = np.random.default_rng(warps).normal(size=(turns, 2, clusters, warps * blocks)).astype(np.float32)
    return values, np.full((turns, 2, clusters * blocks, 32 * warps), np.nan, np.float32)


@row_groups
def test_every_thread_of_the_row_group_gets_the_sum_of_all_members(warps, blocks):
    needs_clusters(blocks)
    clusters = 2 if warps * blocks <= 16 else 1  # that they do not meet shows in small
    values, results = problem(warps, blocks, clusters)
    launch(exchange(warps, blocks), clusters * blocks, 32 * warps, values, results, cluster=blocks)
    exact = values.astype(np.float64)
    turns, _, _ = collector(warps, blocks)
    for cluster in range(clusters):
        got = results[:, :, blocks * cluster : blocks * (cluster + 1)].reshape(3, 2, -1)
        assert (got == got[..., :1]).all(), "not all threads of the row group have the same bits"
        bound = (turns + 5) * 2.0**-24 * 1.01 * abs(exact[:, :, cluster]).sum(-1)
        oracle.assert_within(got[..., 0], exact[:, :, cluster].sum(-1), bound, "row group sum")


@pytest.mark.parametrize(("warps", "blocks"), [(3, 1), (5, 4)])
def test_no_schedule_changes_a_bit(warps, blocks):
    seen = set()
    for schedule in ("forward", "reverse", 1, 2):
        values, results = problem(warps, blocks)
        with using("simulator", schedule):
            launch(exchange(warps, blocks), 2 * blocks, 32 * warps, values, results, cluster=blocks)
        seen.add(results.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize(("warps", "blocks"), [(3, 1), (2, 2)])
def test_two_phases_in_turn_need_no_second_barrier(warps, blocks):
    values, results = problem(warps, blocks)
    report = sanitize(exchange(warps, blocks), cluster=blocks)[2 * blocks, 32 * warps](values, results)
    assert not report.findings, str(report)
