"""Statistics with one barrier: squares within warps and between them, for rows dealt in any way."""

from functools import cache

import numpy as np
import pytest

from normlab import oracle
from normlab.engine import (
    cast,
    cluster_arrive_shared,
    cluster_rank,
    cluster_sync,
    cluster_wait,
    cuda,
    float32,
    launch,
    load,
    use_gpu,
    using,
)
from normlab.stages.grouped import group_merger, group_size
from normlab.stages.row_group import leave
from normlab.stages.vector import ThreadMap, map_threads
from normlab.stages.warp import warp_sum_butterfly


@pytest.mark.parametrize("blocks", [1, 2, 16])
@pytest.mark.parametrize("threads", [8, 32, 96, 512])
@pytest.mark.parametrize(("vectors", "width"), [(1, 1), (3, 2), (8, 4)])
def test_every_value_of_a_row_is_some_member_s(vectors, width, threads, blocks):
    thread_map = ThreadMap(threads, vectors, width, False)
    size = group_size(thread_map, blocks).py_func
    most = thread_map.columns * blocks
    for n2 in {1, width, thread_map.span, thread_map.columns - 1, thread_map.columns, most // 3 + 1, most - 1, most}:
        owners = [0] * (thread_map.warps * blocks)
        for column in range(n2):
            block, within = divmod(column, thread_map.columns)
            owners[block * thread_map.warps + within % thread_map.span // (thread_map.lanes * width)] += 1
        assert [size(n2, member) for member in range(thread_map.warps * blocks)] == owners


@cache
def statistics(thread_map, blocks):
    """A kernel: mean and squares of each row, in every thread: results (n1, 2, blocks, threads); mean: None or not."""
    (vectors, width, span, _), columns, warps = thread_map.loop, thread_map.columns, thread_map.warps
    size, merge = group_size(thread_map, blocks), group_merger(thread_map, blocks)

    @cuda.jit
    def kernel(x, factor, mean, results):
        exchange = cuda.shared.array((1, 1, 2, warps), float32)
        n2 = x.shape[1]
        rank = 0
        row = cuda.blockIdx.x
        if blocks > 1:
            rank = cluster_rank()
            row //= blocks
        warp = cuda.threadIdx.x >> 5
        first = rank * columns + cuda.threadIdx.x * width
        center = cast(0, exchange)
        if mean is not None:
            total = cast(0, exchange)
            for v in range(vectors):
                for k in range(width):
                    if first + v * span + k < n2:
                        total += load(x, (row, first + v * span + k))
            total = warp_sum_butterfly(total)
            center = total / cast(max(size(n2, rank * warps + warp), 1), exchange)
            leave(exchange, 0, 0, 0, warp, total)
        squares = cast(0, exchange)
        for v in range(vectors):
            for k in range(width):
                if first + v * span + k < n2:
                    deviation = load(x, (row, first + v * span + k)) - center
                    squares += deviation * deviation
        leave(exchange, 0, 0, 1, warp, warp_sum_butterfly(squares))
        if blocks > 1:
            cluster_arrive_shared()
            cluster_wait()
        else:
            cuda.syncthreads()
        center, squares = merge(exchange, 0, 0, n2, factor, mean)
        results[row, 0, rank, cuda.threadIdx.x] = center
        results[row, 1, rank, cuda.threadIdx.x] = squares
        if blocks > 1:
            cluster_sync()

    return kernel


def of_cluster(n2, width, threads, blocks):
    """A row dealt to the blocks of a cluster: all but the last have all of their vectors."""
    thread_map = map_threads(-(-n2 // (blocks * width)) * width, width, threads)
    return thread_map._replace(whole=blocks * thread_map.columns == n2)


# n2, width, threads, blocks: whole thread maps and ragged ones, warps without values, more than 32 members, than FEW
THREAD_MAPS = [
    (256, 4, 32, 1),
    (1, 1, 32, 1),
    (1, 1, 96, 1),
    (260, 4, 64, 1),
    (257, 1, 96, 1),
    (300, 2, 160, 1),
    (33, 1, 1024, 1),
    (512, 4, 64, 2),
    (516, 4, 64, 2),
    (70, 2, 32, 4),
    (1500, 2, 512, 4),
    (1090, 1, 544, 2),
    (2100, 1, 544, 4),
]
every_thread_map = pytest.mark.parametrize(("n2", "width", "threads", "blocks"), THREAD_MAPS)


@every_thread_map
def test_the_groups_hold_the_row(n2, width, threads, blocks):
    thread_map = of_cluster(n2, width, threads, blocks) if blocks > 1 else map_threads(n2, width, threads)
    size = group_size(thread_map, blocks).py_func
    places = (
        np.arange(blocks)[:, None, None] * thread_map.columns + np.arange(thread_map.vectors)[:, None] * thread_map.span
    )
    places = places + np.arange(thread_map.span)
    warps = (
        np.arange(blocks)[:, None, None] * thread_map.warps + np.arange(thread_map.span) // (32 * width) + 0 * places
    )
    counted = np.bincount(warps[places < n2], minlength=thread_map.warps * blocks)
    assert [size(n2, member) for member in range(thread_map.warps * blocks)] == counted.tolist()
    assert counted.sum() == n2


@every_thread_map
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("kind", ["normal", "far from zero", "a step"])
def test_mean_and_squares_are_the_oracle_s_in_every_thread(n2, width, threads, blocks, rms, kind):
    if blocks > 1 and use_gpu() and cuda.get_current_device().compute_capability < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    thread_map = of_cluster(n2, width, threads, blocks) if blocks > 1 else map_threads(n2, width, threads)
    rng = np.random.default_rng(n2)
    rows = 2 if threads * blocks < 512 else 1  # by a block or a cluster each, of which two are enough in small
    x = rng.normal(size=(rows, n2)) + {"normal": 0, "far from zero": 1000, "a step": 0}[kind]
    if kind == "a step":  # all the variance is between the groups
        x = np.where(np.arange(n2) < n2 // 2, -100, 100) + 1e-3 * x
    x = x.astype(np.float32)
    results = np.full((rows, 2, blocks, threads), np.nan, np.float32)
    mean = None if rms else np.zeros(rows, np.float32)  # what the kernel does, not what it takes
    launch(statistics(thread_map, blocks), rows * blocks, threads, x, np.float32(1 / n2), mean, results, cluster=blocks)
    members = thread_map.warps * blocks
    how = oracle.Arithmetic(
        row_terms=thread_map.elements + members // 32,
        row_merges=10,
        column_terms=1,
        column_merges=0,
        statistics="grouped",
    )
    eps = 1.0
    norm, bound_of = (oracle.rms_norm, oracle.rms_norm_bound) if rms else (oracle.layer_norm, oracle.layer_norm_bound)
    rest = () if rms else (None,)
    truth, bound = norm(x, n2, None, *rest, eps), bound_of(x, n2, None, *rest, eps, how)
    assert (results == results[:, :, :1, :1]).all(), "not all threads have the same bits"
    mean, squares = results[:, :, 0, 0].T
    if rms:
        assert not mean.any()
    else:
        oracle.assert_within(mean, truth.mean, bound.mean, "mean")
    invvar = np.float32(1) / np.sqrt(squares * np.float32(1 / n2) + np.float32(eps))
    oracle.assert_within(invvar, truth.invvar, bound.invvar, "invvar")


def test_no_schedule_changes_a_bit():
    seen = set()
    thread_map = of_cluster(516, 4, 64, 2)
    x = np.random.default_rng(0).normal(size=(2, 516)).astype(np.float32)
    for schedule in ("forward", "reverse", 1):
        results = np.full((2, 2, 2, 64), np.nan, np.float32)
        with using("simulator", schedule):
            launch(
                statistics(thread_map, 2), 4, 64, x, np.float32(1 / 516), np.zeros(2, np.float32), results, cluster=2
            )
        seen.add(results.tobytes())
    assert len(seen) == 1


def test_a_whole_thread_map_has_groups_of_one_size():
    size = group_size(ThreadMap(64, 4, 2, True), 2).py_func
    assert [size(1024, member) for member in range(4)] == [256] * 4
