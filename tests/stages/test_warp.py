"""Warp reductions: 32 lanes, one-line kernels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from normlab import oracle
from normlab.engine import cast, cuda, launch
from normlab.oracle.floats import extended
from normlab.oracle.moments import welford
from normlab.stages import lane_index, warp_index, warp_moments, warp_moments_butterfly, warp_sum, warp_sum_butterfly
from normlab.stages.warp import lanes_sum, sums_of_lanes, thread_index, warp_count

lanes = arrays(np.float32, 32, elements=st.floats(-1e6, 1e6, width=32))


def sum_kernel(stage):
    @cuda.jit
    def kernel(values, results):
        lane = cuda.threadIdx.x
        results[lane] = stage(values[lane])

    return kernel


def moments_kernel(stage):
    @cuda.jit
    def kernel(values, counted, results):
        """Lane i holds one value, or nothing where counted[i] is 0; results (3, 32)."""
        lane = cuda.threadIdx.x
        count = cast(counted[lane], results)
        mean, m2, count = stage(values[lane] * count, cast(0, results), count)
        results[0, lane] = mean
        results[1, lane] = m2
        results[2, lane] = count

    return kernel


SUMS = {"rotation": sum_kernel(warp_sum), "butterfly": sum_kernel(warp_sum_butterfly)}
MOMENTS = {"rotation": moments_kernel(warp_moments), "butterfly": moments_kernel(warp_moments_butterfly)}


@pytest.mark.parametrize("pattern", SUMS)
@settings(max_examples=30)
@given(values=lanes)
def test_every_lane_gets_the_sum_of_the_warp(pattern, values):
    results = np.full(32, np.nan, np.float32)
    launch(SUMS[pattern], 1, 32, values, results)
    bound = 5.01 * 2.0**-24 * np.abs(values.astype(np.float64)).sum() + 1e-40
    oracle.assert_within(results, np.full(32, values.astype(np.float64).sum()), np.full(32, bound), pattern)
    if pattern == "butterfly":
        assert len(set(results.view(np.uint32).tolist())) == 1, "a butterfly gives every lane the same bits"


def test_each_lane_counts_once():
    for pattern, kernel in SUMS.items():
        results = np.full(32, np.nan, np.float32)
        launch(kernel, 1, 32, 2.0 ** np.arange(32, dtype=np.float32) % 2**20, results)
        assert (results == (2.0 ** np.arange(32, dtype=np.float32) % 2**20).sum()).all(), pattern


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
def test_every_part_of_a_warp_gets_its_own_sum(lanes):
    values = 2.0 ** np.random.default_rng(lanes).permutation(32).astype(np.float32) % 2**20  # whose sums are exact
    results = np.full(32, np.nan, np.float32)
    launch(sum_kernel(lanes_sum(lanes)), 1, 32, values, results)
    np.testing.assert_array_equal(results, values.reshape(-1, lanes).sum(axis=1).repeat(lanes))


def several_sums_kernel(lanes, count):
    sums, butterfly = sums_of_lanes(lanes, count), lanes_sum(lanes)
    reduce_scatter, all_gather, left, _ = sums

    @cuda.jit
    def kernel(given, one_by_one, shares, together):
        """given, one_by_one, together: (32, count). shares: (32, left), after the first of the two functions."""
        lane = cuda.threadIdx.x
        values = cuda.local.array(count, np.float32)
        for k in range(count):
            values[k] = given[lane, k]
            one_by_one[lane, k] = butterfly(given[lane, k])
        reduce_scatter(values, lane)
        for k in range(left):
            shares[lane, k] = values[k]
        all_gather(values, lane)
        for k in range(count):
            together[lane, k] = values[k]

    return sums, kernel


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_several_sums_have_the_bits_of_a_butterfly_each(lanes, count):
    sums, kernel = several_sums_kernel(lanes, count)
    given = np.random.default_rng(32 * lanes + count).normal(size=(32, count)).astype(np.float32)
    one_by_one, together = np.full((2, 32, count), np.nan, np.float32)
    shares = np.full((32, sums.left), np.nan, np.float32)
    launch(kernel, 1, 32, given, one_by_one, shares, together)
    assert together.tobytes() == one_by_one.tobytes()
    for lane in range(32):
        part = lane % lanes // sums.sharing
        own = one_by_one[lane, part * sums.left : (part + 1) * sums.left]
        assert shares[lane].tobytes() == own.tobytes(), lane


@pytest.mark.parametrize("pattern", MOMENTS)
@pytest.mark.parametrize("present", [1, 2, 17, 31, 32])
@settings(max_examples=10)
@given(values=lanes)
def test_lane_0_gets_the_moments_of_the_lanes_that_have_a_value(pattern, present, values):
    counted = (np.arange(32) < present).astype(np.int32)
    results = np.full((3, 32), np.nan, np.float32)
    launch(MOMENTS[pattern], 1, 32, values, counted, results)
    row = extended(values[None, :present])
    variance = row.var(axis=1, keepdims=True)
    how = oracle.Arithmetic(row_terms=1, row_merges=5, column_terms=1, column_merges=0)
    mean_bound, variance_bound = welford(row, variance, how)
    oracle.assert_within(results[0, 0], row.mean(), mean_bound[0, 0], "mean")
    oracle.assert_within(results[1, 0] / results[2, 0], variance[0, 0], variance_bound[0, 0], "variance")
    assert (results[2] == present).all()
    if pattern == "butterfly":
        assert (results.view(np.uint32) == results.view(np.uint32)[:, :1]).all()


@pytest.mark.parametrize("pattern", MOMENTS)
def test_32_equal_values_have_exactly_0_variance_in_every_lane(pattern):
    results = np.full((3, 32), np.nan, np.float32)
    launch(MOMENTS[pattern], 1, 32, np.full(32, 0.1, np.float32), np.ones(32, np.int32), results)
    assert (results[0] == np.float32(0.1)).all()
    assert (results[1] == 0).all()


def test_a_warp_without_values_has_zero_moments():
    results = np.full((3, 32), np.nan, np.float32)
    launch(MOMENTS["rotation"], 1, 32, np.ones(32, np.float32), np.zeros(32, np.int32), results)
    assert (results == 0).all()


@cuda.jit
def places(results):
    """results (4, threads): thread, lane, warp, warps of every thread."""
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    results[0, thread] = thread_index()
    results[1, thread] = lane_index()
    results[2, thread] = warp_index()
    results[3, thread] = warp_count()


@pytest.mark.parametrize("block", [(32, 4), (128, 1), (16, 8)])
def test_threads_are_numbered_x_first_and_cut_into_warps_of_32(block):
    results = np.full((4, 128), -1)
    launch(places, 1, block, results)
    thread = np.arange(128)
    assert (results == [thread, thread % 32, thread // 32, np.full(128, 4)]).all()
