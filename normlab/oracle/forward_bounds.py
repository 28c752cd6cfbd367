"""How far off a kernel's forward may be, element by element, before it has run.

Assumed of the kernel: everything is loaded exactly into the accumulator format (unit roundoff u), computed in it rounding to
nearest without flushing subnormals to zero, and rounded once to storage. A fused multiply-add is fine: it rounds less.
A row has at most 2^24 values (2^53 for float64), so that counts are exact. In a merge of two threads' Welford results the left
one holds no fewer values than the right one, or none, as in lane 0 of a rotation or butterfly over a strided row.

The parts are `moments` (mean and variance); here they become invvar and output. Notation: γ_k = k u / (1 - k u), σ² the
variance, r = 1/√(σ² + ε), hats for what the kernel holds.
"""

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import Extended, ExtendedArray, FloatArray, float_format, gamma_k
from normlab.oracle.inexact import Inexact, held_exactly, unless_special
from normlab.oracle.moments import mean_and_variance, mean_square
from normlab.oracle.rows import Rows, as_rows
from normlab.oracle.values import NormResult, narrow, normalise


def layer_norm_bound(
    x: ArrayLike,
    normalized_shape: int | tuple[int, ...],
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
) -> NormResult:
    """Elementwise absolute bounds on |kernel - layer_norm(x, …)|, shaped like that function's result.

    A bound is NaN where the exact value is certainly NaN, and infinite where nothing is known (see `inexact`).
    """
    return forward_bound(as_rows(x, normalized_shape, weight, bias), eps, arithmetic, centred=True)


def rms_norm_bound(
    x: ArrayLike,
    normalized_shape: int | tuple[int, ...],
    weight: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
) -> NormResult:
    """Elementwise absolute bounds on |kernel - rms_norm(x, …)|, as `layer_norm_bound`."""
    return forward_bound(as_rows(x, normalized_shape, weight, None), eps, arithmetic, centred=False)


def forward_bound(rows: Rows, eps: float, arithmetic: Arithmetic, *, centred: bool) -> NormResult:
    """Both norms' bounds; without `centred` the mean is 0 and exact, which is RMS norm."""
    with np.errstate(all="ignore"):
        middle = normalise(rows, eps, centred=centred)
        if centred:
            mean, variance = mean_and_variance(rows.x, middle, arithmetic)
        else:
            mean, variance = held_exactly(middle.mean, arithmetic), mean_square(rows.n2, middle, arithmetic)
        invvar = inverse_root(variance, eps, middle.invvar)
        deviation = held_exactly(rows.x, arithmetic)
        if centred:
            deviation = deviation - mean
        output = scaled_and_shifted(deviation * invvar, rows)
        # A row that holds an infinity or a NaN: its results are NaN or infinite, and the comparison asserts which.
        # Except Welford's mean, where inf - inf may give NaN for the sum's inf.
        broken = ~np.isfinite(rows.x).all(axis=1, keepdims=True)
        infinite = broken & ~np.isnan(rows.x).any(axis=1, keepdims=True)
        return NormResult(
            finished(
                np.where(broken, np.nan, output.stored(float_format(arithmetic.output))),
                output.exact,
                rows.leading + rows.normalized,
            ),
            finished(np.where(infinite, np.inf, mean.error), mean.exact, rows.leading) if centred else None,
            finished(np.where(broken, np.nan, invvar.error), invvar.exact, rows.leading),
        )


def scaled_and_shifted(xhat: Inexact, rows: Rows) -> Inexact:
    """y = x̂ γ + β, each step only where the parameter is there."""
    output = xhat
    if rows.has_weight:
        output = output * held_exactly(rows.weight, xhat.arithmetic)
    if rows.has_bias:
        output = output + held_exactly(rows.bias, xhat.arithmetic)
    return output


def inverse_root(variance: Inexact, eps: float, exact: ExtendedArray) -> Inexact:
    """r = 1/√s with s = σ² + ε.

    An error d in s moves r by at most 1/√(s - d) - 1/√s = d / (√s √(s-d) (√s + √(s-d))); where d >= |s| nothing is known,
    and where s < -d both are NaN. The root and the division round once each, and CUDA's `rsqrtf` is within 2 ulp: γ_4.
    """
    arithmetic = variance.arithmetic
    # ε is rounded to the accumulator's format, by a known amount.
    rounded_eps = Extended(accumulator_eps(eps, arithmetic))
    s = variance + held_exactly(np.full_like(variance.exact, rounded_eps), arithmetic)
    s = s.instead_of(variance.exact + np.float64(eps))
    root, lowest_root = np.sqrt(s.exact), np.sqrt(s.exact - s.error)
    moved = s.error / (root * lowest_root * (root + lowest_root))
    error = moved + gamma_k(4, arithmetic.u) * (exact + moved) + arithmetic.u_format.half_subnormal
    error = np.where(s.error >= abs(s.exact), Extended(np.inf), error)
    return Inexact(exact, unless_special(error, s.error), arithmetic)


def accumulator_eps(eps: float, arithmetic: Arithmetic) -> np.floating:
    """eps as the kernel holds it."""
    with np.errstate(all="ignore"):
        return np.dtype(arithmetic.accumulator).type(eps)


def finished(error: ExtendedArray, exact: ExtendedArray, shape: tuple[int, ...]) -> FloatArray:
    """A bound to hand out: wider by what rounding the oracle to float64 costs, and by the rounding of the bound itself."""
    float64 = float_format("float64")
    rounding = float64.unit_roundoff * abs(exact) + float64.half_subnormal
    return narrow((error + unless_special(rounding, error)) * (1 + Extended(2) ** -40), shape)
