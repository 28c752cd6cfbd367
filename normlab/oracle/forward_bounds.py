"""Bound the error of a kernel's forward, element by element, before the kernel runs.

The bounds assume that the kernel loads every value exactly into the accumulator's format (unit roundoff u), computes in
this format with rounding to nearest, does not flush subnormals to zero, and rounds once to storage. A fused
multiply-add is allowed, because it rounds less. A row has at most 2^24 values (2^53 for float64), so that counts are
exact. In a merge of two Welford results the left one counts at least as many values as the right one, or no values
(`Arithmetic`).

`moments` bounds mean and variance; this file continues to invvar and output. Notation in both files:
γ_k = k u / (1 - k u), σ² the variance, r = 1/√(σ² + ε); a hat marks the value that the kernel holds.
"""

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import Extended, ExtendedArray, FloatArray, float_format, gamma_k
from normlab.oracle.inexact import Inexact, held_exactly, unless_special
from normlab.oracle.moments import mean_and_variance, mean_square
from normlab.oracle.rows import NormalizedShape, Rows, as_rows
from normlab.oracle.values import NormResult, narrow, normalise


def layer_norm_bound(
    x: ArrayLike,
    normalized_shape: NormalizedShape,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
) -> NormResult:
    """Return elementwise absolute bounds on |kernel - layer_norm(x, …)|, shaped like that function's result.

    A bound is NaN where the true value is an infinity or a NaN, which the kernel must reproduce. It is infinite where
    nothing is known (`inexact`).
    """
    return forward_bound(as_rows(x, normalized_shape, weight, bias, eps), arithmetic, centred=True)


def rms_norm_bound(
    x: ArrayLike,
    normalized_shape: NormalizedShape,
    weight: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
) -> NormResult:
    """Return elementwise absolute bounds on |kernel - rms_norm(x, …)|, as `layer_norm_bound` does."""
    return forward_bound(as_rows(x, normalized_shape, weight, None, eps), arithmetic, centred=False)


def forward_bound(rows: Rows, arithmetic: Arithmetic, *, centred: bool) -> NormResult:
    """Return layer norm's bounds, or RMS norm's if `centred` is False: RMS norm subtracts no mean."""
    with np.errstate(all="ignore"):
        middle = normalise(rows, centred=centred)
        deviation = held_exactly(rows.x, arithmetic)
        mean_bound = None
        if centred:
            mean, variance = mean_and_variance(rows.x, middle, arithmetic)
            deviation = deviation - mean
            mean_bound = finished(mean.error, mean.exact, rows.leading)
        else:
            variance = mean_square(rows.x, middle, arithmetic)
        invvar = inverse_root(variance, rows.eps, middle.invvar)
        # y = x̂ γ + β; the step of an absent parameter is skipped
        output = deviation * invvar
        if rows.has_weight:
            output = output * held_exactly(rows.weight, arithmetic)
        if rows.has_bias:
            output = output + held_exactly(rows.bias, arithmetic)
        output_error = output.stored(float_format(arithmetic.output))
        return NormResult(
            finished(output_error, output.exact, rows.leading + rows.normalized),
            mean_bound,
            finished(invvar.error, invvar.exact, rows.leading),
        )


def inverse_root(variance: Inexact, eps: float, exact: ExtendedArray) -> Inexact:
    """Return r = 1/√s with its error, where s = σ² + ε.

    An error d in s moves r by at most 1/√(s - d) - 1/√s = d / (√s √(s-d) (√s + √(s-d))). If d >= |s|, nothing is
    known. If s < -d, the exact r and the kernel's r are both NaN. The root and the division round once each, and CUDA's
    `rsqrtf` is within 2 ulp, so γ_4 covers both ways.
    """
    arithmetic = variance.arithmetic
    # The kernel rounds ε to the accumulator's format, to infinity if ε is too large. This rounding is known exactly.
    held_eps = accumulator_eps(eps, arithmetic)
    if np.isinf(held_eps):
        return infinite_eps(variance, held_eps, exact)
    s = (variance + held_exactly(np.full_like(variance.exact, held_eps), arithmetic)).instead_of(variance.exact + eps)
    root, lowest_root = np.sqrt(s.exact), np.sqrt(s.exact - s.error)
    moved = s.error / (root * lowest_root * (root + lowest_root))
    error = moved + gamma_k(4, arithmetic.u) * (exact + moved) + arithmetic.u_format.half_subnormal
    error = unless_special(np.where(s.error >= abs(s.exact), Extended(np.inf), error), s.error)
    # If the mean square is infinite, 1/√inf is 0 without an error.
    return Inexact(exact, np.where(np.isinf(variance.exact), Extended(0), error), arithmetic)


def infinite_eps(variance: Inexact, held_eps: Extended, exact: ExtendedArray) -> Inexact:
    """Return r with its error if the kernel's ε is infinite: the kernel holds r as 0, so the error is r itself.

    If ε is negative, the kernel holds r as NaN. That is right, except for σ² = ∞.
    """
    held = 1 / np.sqrt(variance.exact + held_eps)
    error = np.where(np.isnan(held) & ~np.isnan(exact), Extended(np.inf), abs(exact - held))
    # σ² may have overflowed to infinity or NaN.
    return Inexact(exact, np.where(np.isinf(variance.error), Extended(np.inf), error), variance.arithmetic)


def accumulator_eps(eps: float, arithmetic: Arithmetic) -> Extended:
    """Return eps, rounded to the accumulator's format as the kernel holds it."""
    with np.errstate(all="ignore"):
        return Extended(np.dtype(arithmetic.accumulator).type(eps))


def finished(error: ExtendedArray, exact: ExtendedArray, shape: tuple[int, ...]) -> FloatArray:
    """Return a bound in float64, widened for rounding the exact value to float64 and for the bound's own rounding."""
    float64 = float_format("float64")
    rounding = float64.unit_roundoff * abs(exact) + float64.half_subnormal
    return narrow((error + unless_special(rounding, error)) * (1 + Extended(2) ** -40), shape)
