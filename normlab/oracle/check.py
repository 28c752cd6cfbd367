"""Compare a kernel's result with the oracle, element by element, within a bound.

NaN and infinity never pass by accident: both arrays must have the same NaNs and infinities. `assert_within` states the
two exceptions.
"""

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.floats import FloatArray, float_format


def assert_within(got: ArrayLike, want: ArrayLike, bound: ArrayLike, what: str) -> float:
    """Assert |got - want| <= bound everywhere; return the largest |got - want| / bound, where 0 / 0 counts as 0.

    NaNs and infinities must be equal on both sides, whatever the bound, with two exceptions. Where |want| + bound
    passes the largest number of got's type, an infinity of want's sign passes. Where the bound is infinite, every
    value passes, because nothing is known. With a NaN bound only equal NaNs and equal infinities pass. The
    AssertionError names the worst element.

    >>> assert_within(np.float32([1.0, 2.0]), [1.0, 2.5], [0.0, 1.0], "y")
    0.5
    >>> try:
    ...     assert_within(np.float32([1.0, 2.0]), [1.0, 2.5], [0.0, 0.1], "y")
    ... except AssertionError as error:
    ...     print(str(error).replace("; ", "\\n"))
    y: 1 of 2 elements are off by more than their bound
    worst at (1,): got 2.0, want 2.5, error 0.5, bound 0.1, ratio 5
    """
    if np.shape(got) != np.shape(want):
        raise AssertionError(f"{what}: got shape {np.shape(got)}, want shape {np.shape(want)}")
    bounds = np.broadcast_to(bound, np.shape(want))
    ratios = elementwise_ratios(np.asarray(got), np.asarray(want), bounds)
    worst = float(ratios.max(initial=0.0))
    if worst <= 1:
        return worst
    at = np.unravel_index(int(ratios.argmax()), ratios.shape)
    value, right = float(np.asarray(got)[at]), float(np.asarray(want)[at])
    raise AssertionError(
        f"{what}: {np.count_nonzero(ratios > 1)} of {ratios.size} elements are off by more than their bound; "
        f"worst at {tuple(map(int, at))}: got {value}, want {right}, error {abs(value - right):.3g}, "
        f"bound {float(bounds[at]):.3g}, ratio {worst:.3g}"
    )


def ratio(got: ArrayLike, want: ArrayLike, bound: ArrayLike) -> float:
    """Return the largest |got - want| / bound: `assert_within` fails if it is above 1.

    It is infinite if the shapes differ, or if a NaN or an infinity is on one side only.

    >>> ratio(np.float32([1.0, np.nan]), [1.0, 2.0], [0.5, 0.5])
    inf
    """
    if np.shape(got) != np.shape(want):
        return float("inf")
    return float(
        elementwise_ratios(np.asarray(got), np.asarray(want), np.broadcast_to(bound, np.shape(want))).max(initial=0.0)
    )


def elementwise_ratios(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> FloatArray:
    """Return elementwise |got - want| / bound: 0 for NaNs and infinities that may pass, infinite for all others."""
    largest = float(float_format(got.dtype).largest)
    with np.errstate(all="ignore"):  # NumPy would warn when it widens a signalling NaN
        held, right, allowed = got.astype(np.float64), want.astype(np.float64), bound.astype(np.float64)
        error = np.abs(held - right)
        ratios = np.where(error == 0, 0.0, error / allowed)
        overflow = ((held == np.inf) & (right + allowed > largest)) | ((held == -np.inf) & (right - allowed < -largest))
    same = (held == right) | (np.isnan(held) & np.isnan(right))
    ratios = np.where(np.isnan(ratios), np.inf, ratios)
    return np.where(same | overflow | (allowed == np.inf), 0.0, ratios)
