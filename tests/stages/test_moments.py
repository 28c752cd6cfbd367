"""welford_step, chan_merge, rms_step, rms_merge: one thread, one-line kernels."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from normlab import oracle
from normlab.engine import cast, cuda, launch
from normlab.oracle.floats import extended
from normlab.oracle.moments import welford
from normlab.stages import chan_merge, rms_merge, rms_step, welford_step

values_32 = st.floats(-1e6, 1e6, width=32)
columns = arrays(np.float32, st.integers(1, 40), elements=values_32)


@cuda.jit
def fold(values, moments):
    """moments (3,): mean, m2, count of all values, one after another."""
    mean = cast(0, moments)
    m2 = cast(0, moments)
    count = cast(0, moments)
    for i in range(values.shape[0]):
        mean, m2, count = welford_step(values[i], mean, m2, count)
    moments[0] = mean
    moments[1] = m2
    moments[2] = count


@cuda.jit
def merge(a, b, merged):
    """merged (3,): moments a and b together."""
    mean, m2, count = chan_merge(a[0], a[1], a[2], b[0], b[1], b[2])
    merged[0] = mean
    merged[1] = m2
    merged[2] = count


def moments_of(values):
    out = np.full(3, np.nan, values.dtype)
    launch(fold, 1, 1, values, out)
    return out


def merged(a, b):
    out = np.full(3, np.nan, a.dtype)
    launch(merge, 1, 1, a, b, out)
    return out


def assert_moments(got, values, merges=0):
    """Mean and variance within the oracle's bounds for this many values, merged so many times."""
    how = oracle.Arithmetic(
        accumulator=values.dtype.name,
        row_terms=len(values), row_merges=merges, column_terms=1, column_merges=0,
    )  # fmt: skip
    row = extended(values)[None, :]
    variance = row.var(axis=1, keepdims=True)
    mean_bound, variance_bound = welford(row, variance, how)
    oracle.assert_within(got[0], row.mean(), mean_bound[0, 0], "mean")
    oracle.assert_within(got[1] / got[2], variance[0, 0], variance_bound[0, 0], "variance")
    assert got[2] == len(values)


@given(columns)
def test_welford_steps_give_mean_and_variance(values):
    assert_moments(moments_of(values), values)


@given(columns.map(np.float64))
def test_welford_steps_in_float64_keep_float64(values):
    assert_moments(moments_of(values), values)


def test_welford_keeps_a_spread_of_1_around_a_mean_of_1e6():
    values = (1e6 + np.random.default_rng(0).normal(size=512)).astype(np.float32)
    got = moments_of(values)
    assert_moments(got, values)
    assert 0.9 < got[1] / got[2] < 1.1
    squares = np.float32(0)  # what E[x²] - E[x]² makes of the same values
    for value in values:
        squares += value * value
    assert abs(squares / np.float32(512) - values.mean() ** 2 - 1) > 100


@given(st.integers(1, 40), values_32)
def test_equal_values_have_exactly_0_variance(count, value):
    assert moments_of(np.full(count, value, np.float32)).tolist() == [np.float32(value), 0, count]


@given(values_32)
def test_one_value_is_its_own_mean(value):
    assert moments_of(np.array([value], np.float32)).tolist() == [np.float32(value), 0, 1]


@given(columns, st.data())
def test_chan_merge_of_two_parts_equals_the_whole_split_anywhere(values, data):
    split = data.draw(st.integers(0, len(values)))
    a, b = moments_of(values[:split]), moments_of(values[split:])
    assert_moments(merged(*larger_first(a, b)), values, merges=1)


@given(columns, columns, columns)
def test_chan_merge_is_associative_within_its_bound(first, second, third):
    a, b, c = sorted((moments_of(part) for part in (first, second, third)), key=lambda part: -part[2])
    whole = np.concatenate([first, second, third])
    assert_moments(merged(merged(a, b), c), whole, merges=2)
    assert_moments(merged(*larger_first(a, merged(b, c))), whole, merges=2)


def larger_first(*parts):
    """The order in which the bound was derived; every kernel's merges have it, for lane 0 has the longest share."""
    return sorted(parts, key=lambda part: -part[2])


@given(columns, columns)
def test_chan_merge_is_commutative_within_its_bound(first, second):
    a, b = moments_of(first), moments_of(second)
    whole = np.concatenate([first, second])
    assert_moments(merged(*larger_first(a, b)), whole, merges=1)
    # With n_b = ratio * n_a the merge rounds 1 + 3 ratio times, not 4 (normlab.oracle.moments.welford).
    ratio = max(len(first), len(second)) / min(len(first), len(second))
    assert_moments(merged(*larger_first(a, b)[::-1]), whole, merges=math.ceil((1 + 3 * ratio) / 4))


@given(values_32, st.integers(1, 1000), st.integers(1, 1000))
@example(float(np.float32(0.1)), 1, 2)  # a weighted average of 0.1 and 0.1 is another number
def test_chan_merge_of_equal_means_keeps_the_mean_and_0_variance(mean, count_a, count_b):
    a, b = (np.array([mean, 0, count], np.float32) for count in (count_a, count_b))
    assert merged(a, b).tolist() == [np.float32(mean), 0, count_a + count_b]


@given(columns)
def test_chan_merge_with_an_empty_group_changes_nothing(values):
    a, empty = moments_of(values), np.zeros(3, np.float32)
    assert merged(a, empty).tolist() == a.tolist()
    other_way = merged(empty, a)
    assert other_way[0] == a[0]
    assert other_way[1:].tolist() == a[1:].tolist()


def test_chan_merge_with_an_empty_group_does_not_overflow_where_the_mean_s_square_does():
    huge = np.array([1e25, 3, 2], np.float32)
    assert merged(huge, np.zeros(3, np.float32)).tolist() == huge.tolist()


def test_chan_merge_of_two_empty_groups_gives_zeros():
    assert merged(np.zeros(3, np.float32), np.zeros(3, np.float32)).tolist() == [0, 0, 0]


def test_chan_merge_lets_nan_through():
    assert np.isnan(merged(np.array([np.nan, 0, 1], np.float32), np.array([1, 0, 1], np.float32))[0])


@cuda.jit
def fold_squares(values, split, sums):
    """sums (2,): of the squares of all values, and the same merged from two parts."""
    whole = cast(0, sums)
    left = cast(0, sums)
    right = cast(0, sums)
    for i in range(values.shape[0]):
        whole = rms_step(values[i], whole)
        if i < split:
            left = rms_step(values[i], left)
        else:
            right = rms_step(values[i], right)
    sums[0] = whole
    sums[1] = rms_merge(left, right)


@settings(max_examples=50)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(values=columns, data=st.data())
def test_rms_steps_and_their_merge_sum_the_squares(dtype, values, data):
    values = values.astype(dtype)
    sums = np.full(2, np.nan, dtype)
    launch(fold_squares, 1, 1, values, data.draw(st.integers(0, len(values))), sums)
    want = (values.astype(np.longdouble) ** 2).sum()
    bound = (len(values) + 2) * float(np.finfo(dtype).eps) * float(want) + float(
        np.finfo(dtype).smallest_subnormal
    ) * 50
    for got in sums:
        oracle.assert_within(got, np.float64(want), bound, "square sum")
