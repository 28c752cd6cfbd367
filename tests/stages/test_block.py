"""Block reductions: one value a warp (or thread), one-line kernels, every number of warps."""

import numpy as np
import pytest

from normlab import oracle
from normlab.engine import cast, cuda, launch, using
from normlab.oracle.floats import extended
from normlab.oracle.moments import welford
from normlab.stages.block import block_moments, block_sum, block_sums, block_tree_sum
from normlab.stages.warp import warp_index

WARPS = [1, 2, 3, 4, 5, 8, 16]
SCHEDULES = ["forward", "reverse", 1, 2]


@cuda.jit
def moments_twice(values, results):
    """values (2, warps); results (2, 3, threads): two reductions on one buffer, straight after each other."""
    buffer = cuda.shared.array((3, 32), np.float32)
    thread = cuda.threadIdx.x
    for k in range(2):
        mean, m2, count = block_moments(values[k, warp_index()], cast(0, values), cast(1, values), buffer)
        results[k, 0, thread] = mean
        results[k, 1, thread] = m2
        results[k, 2, thread] = count


@cuda.jit
def sums_twice(values, results):
    """values (2, warps); results (2, 3, threads): a pair of sums, and one sum, twice on one buffer."""
    buffer = cuda.shared.array((2, 32), np.float32)
    thread = cuda.threadIdx.x
    for k in range(2):
        value = values[k, warp_index()]
        first, second = block_sums(value, -value, buffer)
        results[k, 0, thread] = first
        results[k, 1, thread] = second
        results[k, 2, thread] = block_sum(value, buffer)


@cuda.jit
def tree_twice(values, results):
    """values, results (2, threads)."""
    buffer = cuda.shared.array(1024, np.float32)
    for k in range(2):
        results[k, cuda.threadIdx.x] = block_tree_sum(values[k, cuda.threadIdx.x], buffer)


def in_every_schedule(kernel, block, values, shape):
    """Results of a launch; in the simulator asserted to be the same bits whatever the order of warps and lanes."""
    results = np.full(shape, np.nan, np.float32)
    launch(kernel, 1, block, values, results)
    for schedule in SCHEDULES:
        again = np.full(shape, np.nan, np.float32)
        with using("simulator", schedule):
            launch(kernel, 1, block, values, again)
        if schedule == "forward":
            first = again
        assert (again.view(np.uint32) == first.view(np.uint32)).all(), f"schedule {schedule} changes the result"
    return results


@pytest.mark.parametrize("warps", WARPS)
def test_every_thread_gets_the_moments_of_all_warps(warps):
    values = (np.random.default_rng(warps).normal(size=(2, warps)) + 3).astype(np.float32)
    results = in_every_schedule(moments_twice, 32 * warps, values, (2, 3, 32 * warps))
    levels = (warps - 1).bit_length()
    how = oracle.Arithmetic(row_terms=1, row_merges=levels, column_terms=1, column_merges=0)
    for k in range(2):
        row = extended(values[k : k + 1])
        variance = row.var(axis=1, keepdims=True)
        mean_bound, variance_bound = welford(row, variance, how)
        for thread in range(32 * warps):
            mean, m2, count = results[k, :, thread]
            oracle.assert_within(mean, row.mean(), mean_bound[0, 0], "mean")
            oracle.assert_within(m2 / count, variance[0, 0], variance_bound[0, 0], "variance")
            assert count == warps


@pytest.mark.parametrize("warps", WARPS)
def test_every_thread_gets_the_sums_over_all_warps(warps):
    values = np.random.default_rng(warps).normal(size=(2, warps)).astype(np.float32)
    results = in_every_schedule(sums_twice, 32 * warps, values, (2, 3, 32 * warps))
    want = values.astype(np.float64).sum(axis=1)
    bound = 4.01 * 2.0**-24 * np.abs(values.astype(np.float64)).sum(axis=1)
    for row, sign in enumerate((1, -1, 1)):
        for k in range(2):
            full = np.ones(32 * warps)
            oracle.assert_within(results[k, row], sign * want[k] * full, bound[k] * full, "block sum")


@pytest.mark.parametrize("threads", [1, 2, 32, 64, 128, 512])
def test_every_thread_gets_the_tree_sum(threads):
    values = np.random.default_rng(threads).normal(size=(2, threads)).astype(np.float32)
    results = in_every_schedule(tree_twice, threads, values, (2, threads))
    for k in range(2):
        bound = 10.01 * 2.0**-24 * np.abs(values[k].astype(np.float64)).sum()
        want = np.full(threads, values[k].astype(np.float64).sum())
        oracle.assert_within(results[k], want, np.full(threads, bound), "tree sum")
