"""How far off a kernel's gradients may be, element by element, before it has run.

The kernel's formulas are written once, with numbers that carry their error (`inexact`), under the assumptions stated in
`forward_bounds`. x̂ comes from one of two places: the saved input with the saved mean and invvar, or, `memory_efficient`, the
saved output with the saved invvar (apex's branch of that name).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import Extended, ExtendedArray, FloatArray, extended, float_format, unit_roundoff
from normlab.oracle.forward_bounds import accumulator_eps, finished, scaled_and_shifted
from normlab.oracle.inexact import Inexact, held_exactly, sum_of_three
from normlab.oracle.rows import Rows, as_rows
from normlab.oracle.values import NormGradients, Normalised, normalise


class Ingredients(NamedTuple):
    """What the two paths make differently, each (n1, n2)."""

    xhat: Inexact
    through_xhat: Inexact
    """The terms of Σ ∂L/∂y γ x̂."""
    g: Inexact
    """∂L/∂y γ where it stands alone, times n."""


def layer_norm_backward_bound(
    grad_output: ArrayLike,
    x: ArrayLike,
    normalized_shape: int | tuple[int, ...],
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
    *,
    memory_efficient: bool = False,
    mean_error: ArrayLike | None = None,
    invvar_error: ArrayLike | None = None,
    output_error: ArrayLike | None = None,
) -> NormGradients:
    """Elementwise absolute bounds on |kernel - layer_norm_backward(grad_output, x, …)|, shaped like that function's result.

    `x` is the input on both paths. What the kernel was handed may itself be off: `mean_error` and `invvar_error` (x's leading
    dimensions) and `output_error` (x's shape) are bounds on that; by default it was handed exact values, rounded to storage.
    With `memory_efficient` the bound holds the bias of the clamp where |weight| < eps, and grows as `recompute_error` above it.
    """
    rows = as_rows(x, normalized_shape, weight, bias)
    saved = Saved(mean_error, invvar_error, output_error)
    return backward_bound(grad_output, rows, eps, arithmetic, memory_efficient, saved, centred=True)


def rms_norm_backward_bound(
    grad_output: ArrayLike,
    x: ArrayLike,
    normalized_shape: int | tuple[int, ...],
    weight: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
    *,
    memory_efficient: bool = False,
    invvar_error: ArrayLike | None = None,
    output_error: ArrayLike | None = None,
) -> NormGradients:
    """Elementwise absolute bounds on |kernel - rms_norm_backward(grad_output, x, …)|, as `layer_norm_backward_bound`."""
    rows = as_rows(x, normalized_shape, weight, None)
    saved = Saved(None, invvar_error, output_error)
    return backward_bound(grad_output, rows, eps, arithmetic, memory_efficient, saved, centred=False)


class Saved(NamedTuple):
    """Bounds on the errors of what the forward saved; None: the exact value, rounded to storage."""

    mean_error: ArrayLike | None
    invvar_error: ArrayLike | None
    output_error: ArrayLike | None


def backward_bound(
    grad_output: ArrayLike,
    rows: Rows,
    eps: float,
    arithmetic: Arithmetic,
    memory_efficient: bool,
    saved: Saved,
    *,
    centred: bool,
) -> NormGradients:
    """Both norms' bounds; without `centred` the row's mean takes no part.

    With n g, Σ₁ = Σ ∂L/∂y γ and Σ₂ = Σ ∂L/∂y γ x̂ a kernel computes (n g - Σ₁ - x̂ Σ₂) r / n, or the same with means for sums.
    Both round each part at most twice more (times n; a rounded 1/n and times it) and the whole three times (r, 1/n, their use).
    """
    dy = held_exactly(rows.matrix(grad_output, "grad_output"), arithmetic)
    with np.errstate(all="ignore"):
        middle = normalise(rows, eps, centred=centred)
        invvar = handed_in(middle.invvar, saved.invvar_error, "invvar_error", rows, arithmetic)
        if memory_efficient:
            parts = from_output(dy, middle, rows, eps, saved.output_error)
        else:
            mean = handed_in(middle.mean, saved.mean_error, "mean_error", rows, arithmetic) if centred else None
            parts = from_input(dy, mean, invvar, rows)

        n = Extended(rows.n2)
        n_g = parts.g.scaled(n).rounded_again(1)
        sum2 = parts.through_xhat.sum(1, arithmetic.row_sum).rounded_again(2)
        away = (parts.xhat * sum2).scaled(Extended(-1))
        if centred:
            sum1 = times_weight(dy, rows).sum(1, arithmetic.row_sum).rounded_again(2)
            whole = sum_of_three(n_g, sum1.scaled(Extended(-1)), away)
        else:
            whole = n_g + away
        # ∂L/∂x = (n g - Σ₁ - x̂ Σ₂) r / n
        grad_input = (whole * invvar).scaled(1 / n).rounded_again(2)
        # ∂L/∂γ = Σ over rows of ∂L/∂y x̂,  ∂L/∂β = Σ over rows of ∂L/∂y
        grad_weight = (dy * parts.xhat).sum(0, arithmetic.column_sum)
        grad_bias = dy.sum(0, arithmetic.column_sum)

        # Where an infinity or a NaN of x or grad_output reaches, the comparison asserts the pattern.
        broken_x, broken_dy = ~np.isfinite(rows.x), ~np.isfinite(dy.exact)
        rows_broken = (broken_x | broken_dy).any(axis=1, keepdims=True)
        columns_broken = broken_dy.any(axis=0)
        shape = rows.leading + rows.normalized
        return NormGradients(
            stored(grad_input, rows_broken, arithmetic.input, shape),
            stored(grad_weight, columns_broken | broken_x.any(), arithmetic.parameter, rows.normalized)
            if rows.has_weight
            else None,
            stored(grad_bias, columns_broken, arithmetic.parameter, rows.normalized) if rows.has_bias else None,
        )


def from_input(dy: Inexact, mean: Inexact | None, invvar: Inexact, rows: Rows) -> Ingredients:
    """x̂ = (x - mean) r from the saved input; the true weight is used everywhere."""
    x = held_exactly(rows.x, dy.arithmetic)
    xhat = (x if mean is None else x - mean) * invvar
    g = times_weight(dy, rows)
    return Ingredients(xhat, g * xhat, g)


def from_output(dy: Inexact, middle: Normalised, rows: Rows, eps: float, output_error: ArrayLike | None) -> Ingredients:
    """x̂ = (y - β) / clamp(γ) from the saved output; Σ₂ = Σ ∂L/∂y (y - β) needs no division and so no clamp.

    As in apex the clamped weight stands in n g, too. What the clamp changes is part of the error: |x̂| |γ / clamp(γ) - 1| in x̂,
    |∂L/∂y| |clamp(γ) - γ| in g.
    """
    shifted = saved_output(middle.xhat, rows, output_error, dy.arithmetic)
    if rows.has_bias:
        shifted = shifted - held_exactly(rows.bias, dy.arithmetic)
    if not rows.has_weight:
        return Ingredients(shifted, dy * shifted, dy)
    clamped = clamp_by_magnitude(rows.weight, accumulator_eps(eps, dy.arithmetic))
    xhat = shifted.divided_exactly(clamped).instead_of(middle.xhat)
    g = (dy * held_exactly(clamped, dy.arithmetic)).instead_of(dy.exact * rows.weight)
    return Ingredients(xhat, dy * shifted, g)


def saved_output(xhat: ExtendedArray, rows: Rows, output_error: ArrayLike | None, arithmetic: Arithmetic) -> Inexact:
    """y as it was stored, in the accumulator. Nothing is known where storage may have overflowed."""
    y = xhat * rows.weight + rows.bias
    storage = float_format(arithmetic.output)
    if output_error is None:
        error = storage.unit_roundoff * abs(y) + storage.half_subnormal
    else:
        error = rows.matrix(output_error, "output_error")
    return Inexact(y, np.where(abs(y) + error > storage.largest, Extended(np.inf), error), arithmetic)


def handed_in(exact: ExtendedArray, error: ArrayLike | None, name: str, rows: Rows, arithmetic: Arithmetic) -> Inexact:
    """A statistic (n1, 1) that the forward saved, off by `error` or by its rounding to the accumulator's format."""
    if error is not None:
        return Inexact(exact, rows.column(error, name), arithmetic)
    u_format = arithmetic.u_format
    return Inexact(exact, u_format.unit_roundoff * abs(exact) + u_format.half_subnormal, arithmetic)


def times_weight(dy: Inexact, rows: Rows) -> Inexact:
    """g = ∂L/∂y γ, without a rounding where there is no weight."""
    return dy * held_exactly(rows.weight, dy.arithmetic) if rows.has_weight else dy


def clamp_by_magnitude(weight: ExtendedArray, eps: np.floating) -> ExtendedArray:
    """The weight, pushed out of (-eps, eps) with its sign kept; 0 becomes eps. apex's function of the same name."""
    return np.where(weight >= 0, np.maximum(weight, eps), np.minimum(weight, -eps))


def stored(value: Inexact, broken: np.ndarray, storage: str, shape: tuple[int, ...]) -> FloatArray:
    """The bound of a stored result; NaN where it is `broken`."""
    return finished(np.where(broken, np.nan, value.stored(float_format(storage))), value.exact, shape)


def recompute_error(
    xhat: ArrayLike, weight: ArrayLike | None, bias: ArrayLike | None, eps: float, dtype: DTypeLike
) -> FloatArray:
    """The law of recomputing: how far x̂ from a saved output of type `dtype` is off, to first order and without constants.

        u (|β| + |γ x̂|) / |clamp(γ)|  +  |x̂| |1 - γ / clamp(γ)|

    The output's rounding, divided by the weight; and where |γ| < eps, the clamp's bias. A bias that is large against the
    weight drowns x̂: with β = 1, γ = 1e-3 and float16 outputs half a unit of x̂ is lost.

    >>> float(recompute_error(1.0, 1e-3, 1.0, 1e-5, "float16").round(2))
    0.49
    """
    gamma = extended(1.0 if weight is None else weight)
    clamped = clamp_by_magnitude(gamma, np.float64(eps)) if weight is not None else gamma
    beta = extended(0.0 if bias is None else bias)
    normalised = abs(extended(xhat))
    rounding = unit_roundoff(dtype) * (abs(beta) + abs(gamma) * normalised) / abs(clamped)
    return (rounding + normalised * abs(1 - gamma / clamped)).astype(np.float64)
