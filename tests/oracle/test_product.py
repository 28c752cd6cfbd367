"""The matrix product's truth and bound: against exact arithmetic, NumPy kernels, and special values."""

from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from normlab.oracle import assert_within, product, product_bound

MAX = float(np.finfo(np.float32).max)


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def kernel(a, b, c, alpha, beta, order=None):
    """A float32 kernel: one chain of products along K, in this order, then scaled."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        if alpha:
            for k in range(a.shape[1]) if order is None else order:
                total = total + np.multiply.outer(a[:, k], b[k])
        value = np.float32(alpha) * total if alpha else total
        return value + np.float32(beta) * c if beta else value


def test_the_truth_is_exact_to_a_few_roundings_of_float64():
    rng = np.random.default_rng(0)
    a, b, c = normal(rng, 2, 9), normal(rng, 9, 3), normal(rng, 2, 3)
    alpha, beta = 1.1, -0.3
    got = product(a, b, c, alpha, beta)
    for i, j in np.ndindex(2, 3):
        dot = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[:, j], strict=True))
        exact = Fraction(float(np.float32(alpha))) * dot + Fraction(float(np.float32(beta))) * Fraction(float(c[i, j]))
        assert abs(Fraction(got[i, j]) - exact) < 1e-14


@hypothesis.given(
    st.sampled_from([1, 7, 33]), st.sampled_from([1, 3, 129]), st.sampled_from([1.0, -1.0, 0.0, 0.3, 1e30, 1e-30]),
    st.sampled_from([0.0, 1.0, 0.7]), st.sampled_from([1.0, 1e-22, 1e18]), st.integers(0, 100),
)  # fmt: skip
def test_every_order_of_a_chain_is_within_the_bound(m, k, alpha, beta, scale, seed):
    rng = np.random.default_rng(seed)
    a, b, c = normal(rng, m, k) * np.float32(scale), normal(rng, k, 5), normal(rng, m, 5)
    got = kernel(a, b, c, alpha, beta, rng.permutation(k))
    assert_within(got, product(a, b, c, alpha, beta), product_bound(a, b, c, alpha, beta), "product")


def test_the_bound_is_reached_within_a_factor_of_two_where_every_rounding_goes_one_way():
    k = 2**12  # 1 + u rounds to 1: each of the small ones is lost
    a = np.ones((1, k), np.float32)
    b = np.full((k, 1), 2.0**-24, np.float32)
    b[0] = 1
    ratio = assert_within(kernel(a, b, None, 1, 0), product(a, b), product_bound(a, b), "product")
    assert 0.4 < ratio <= 1


def test_a_wrong_product_is_outside():
    rng = np.random.default_rng(1)
    a, b = normal(rng, 4, 64), normal(rng, 64, 4)
    want, bound = product(a, b), product_bound(a, b)
    for wrong in (kernel(a, b, None, 1, 0, range(63)), kernel(a, b, None, 1, 0).T, kernel(a, b, None, 1.0001, 0)):
        with pytest.raises(AssertionError, match="are off by more than their bound"):
            assert_within(wrong, want, bound, "product")


def test_nothing_of_a_and_b_is_read_for_alpha_0_and_nothing_of_c_for_beta_0():
    nan = np.full((2, 2), np.nan, np.float32)
    one = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(product(nan, nan, one, 0.0, 3.0), 3 * one)
    np.testing.assert_array_equal(product_bound(nan, nan, one, 0.0, 1.0), product_bound(one, one, one, 0.0, 1.0))
    np.testing.assert_array_equal(product(one, one, nan), 2 * one)
    assert np.isfinite(product_bound(one, one, nan)).all()


def test_a_product_over_nothing_is_zero_whatever_alpha_is():
    none = np.empty((2, 0), np.float32)
    np.testing.assert_array_equal(product(none, none.T, None, np.inf), np.zeros((2, 2)))
    np.testing.assert_array_equal(product_bound(none, none.T), np.zeros((2, 2)))


def test_nan_and_infinity_are_right_where_they_are_and_nowhere_else():
    a = np.float32([[1, np.inf], [1, 2], [np.nan, 1]])
    b = np.float32([[1, 0], [1, 0]])
    want = product(a, b)
    np.testing.assert_array_equal(want, [[np.inf, np.nan], [3, 0], [np.nan, np.nan]])
    bound = product_bound(a, b)
    assert_within(want.astype(np.float32), want, bound, "product")
    for at in ((0, 0), (0, 1), (1, 0), (2, 1)):
        wrong = want.astype(np.float32)
        wrong[at] = 7
        with pytest.raises(AssertionError):
            assert_within(wrong, want, bound, "product")


def test_where_a_sum_may_overflow_on_the_way_nothing_is_known():
    a = np.float32([[MAX, MAX, -MAX, -MAX]])
    b = np.ones((4, 1), np.float32)
    assert product(a, b) == 0
    assert product_bound(a, b) == np.inf
    assert product_bound(a / 8, b) < np.inf
    assert product_bound(a / 8, b, None, 100.0) == np.inf  # though alpha A B is 0
