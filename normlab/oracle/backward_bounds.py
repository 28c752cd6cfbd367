"""Bound the error of a kernel's gradients, element by element, before the kernel runs.

The kernel's formulas are written once, with numbers that carry their error (`inexact`), under the assumptions stated in
`forward_bounds`. x̂ comes first. It is (x - mean) r, from the saved input and the saved statistics; or, with
`memory_efficient`, (y - β) / clamp(γ), from the saved output (`recompute`). Then, left to right,

    ∂L/∂x = (n g - Σ₁ - x̂ Σ₂) r / n,  or the same with means for sums
        g = ∂L/∂y γ             memory_efficient: ∂L/∂y clamp(γ), as in apex
        Σ₁ = Σ ∂L/∂y γ          RMS norm: no such term
        Σ₂ = Σ (∂L/∂y γ) x̂      memory_efficient: Σ ∂L/∂y (y - β), which needs no division and so no clamp
    ∂L/∂γ = Σ over rows of ∂L/∂y x̂
    ∂L/∂β = Σ over rows of ∂L/∂y

In a column whose x̂ was `kept` beside the output, x̂ comes from the saved input, rounded to storage, and γ is not
clamped. Σ₂ first adds ∂L/∂y (y - β), as in other columns, then the difference from ∂L/∂y γ x̂ (`recompute.completed`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle import late
from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import Extended, ExtendedArray, FloatArray, float_format
from normlab.oracle.forward_bounds import accumulator_eps, finished
from normlab.oracle.inexact import Inexact, held_exactly, sum_of_three, where
from normlab.oracle.recompute import (
    clamp_by_magnitude,
    completed,
    saved_output,
    through_memory,
    times_clamped_weight,
    unscaled,
    unshifted,
)
from normlab.oracle.rows import NormalizedShape, Rows, as_rows
from normlab.oracle.values import NormGradients, normalise


class Saved(NamedTuple):
    """The forward's saved results, and bounds on their errors; None: the exact values, rounded to storage."""

    memory_efficient: bool
    mean_error: ArrayLike | None = None
    invvar_error: ArrayLike | None = None
    output_error: ArrayLike | None = None
    kept: ArrayLike | None = None


def layer_norm_backward_bound(
    grad_output: ArrayLike,
    x: ArrayLike,
    normalized_shape: NormalizedShape,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
    *,
    memory_efficient: bool = False,
    mean_error: ArrayLike | None = None,
    invvar_error: ArrayLike | None = None,
    output_error: ArrayLike | None = None,
    kept: ArrayLike | None = None,
) -> NormGradients:
    """Return elementwise absolute bounds on |kernel - layer_norm_backward(grad_output, x, …)|, shaped like its result.

    `x` is the input on both paths. The kernel's saved inputs may themselves have errors: `mean_error`, `invvar_error`
    (x's leading dimensions) and `output_error` (x's shape) bound these errors. By default the saved values are exact,
    then rounded to storage. With `memory_efficient` the bound contains the clamp's bias where |weight| < eps, and
    follows `recompute_error`, except in the columns listed in `kept` (indices into a row of n2): the forward kept
    their normalised values beside the output.
    """
    saved = Saved(memory_efficient, mean_error, invvar_error, output_error, kept)
    rows = as_rows(x, normalized_shape, weight, bias, eps)
    return backward_bound(grad_output, rows, arithmetic, saved, centred=True)


def rms_norm_backward_bound(
    grad_output: ArrayLike,
    x: ArrayLike,
    normalized_shape: NormalizedShape,
    weight: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
    *,
    memory_efficient: bool = False,
    invvar_error: ArrayLike | None = None,
    output_error: ArrayLike | None = None,
    kept: ArrayLike | None = None,
) -> NormGradients:
    """Return elementwise absolute bounds on |kernel - rms_norm_backward(grad_output, x, …)|, as for layer norm."""
    saved = Saved(memory_efficient, None, invvar_error, output_error, kept)
    rows = as_rows(x, normalized_shape, weight, None, eps)
    return backward_bound(grad_output, rows, arithmetic, saved, centred=False)


def backward_bound(
    grad_output: ArrayLike,
    rows: Rows,
    arithmetic: Arithmetic,
    saved: Saved,
    *,
    centred: bool,
    grad_residual: ArrayLike | None = None,
) -> NormGradients:
    """Return layer norm's bounds, or RMS norm's if `centred` is False: RMS norm subtracts no mean.

    grad_residual: what the kernel adds to grad_input, with one more rounding, before it stores the sum.
    """
    dy = held_exactly(rows.matrix(grad_output, "grad_output"), arithmetic)
    with np.errstate(all="ignore"):
        middle = normalise(rows, centred=centred)
        invvar = handed_in(middle.invvar, saved.invvar_error, "invvar_error", rows, arithmetic)
        g = true_g = dy * held_exactly(rows.weight, arithmetic) if rows.has_weight else dy
        x = held_exactly(rows.x, arithmetic)
        if centred:
            x = x - handed_in(middle.mean, saved.mean_error, "mean_error", rows, arithmetic)
        xhat = x * invvar
        terms2 = g * xhat
        if saved.memory_efficient:
            held_eps = accumulator_eps(rows.eps, arithmetic)
            shifted = unshifted(saved_output(middle.xhat, rows, saved.output_error, arithmetic), rows)
            kept_xhat = through_memory(xhat, float_format(arithmetic.output))
            kept_terms = completed(dy, kept_xhat, shifted, rows)
            is_kept = np.isin(np.arange(rows.n2), () if saved.kept is None else saved.kept)
            xhat = where(is_kept, kept_xhat, unscaled(shifted, middle.xhat, rows, held_eps))
            g = where(is_kept, true_g, times_clamped_weight(dy, rows, held_eps))
            terms2 = where(is_kept, kept_terms, dy * shifted)

        grad_input = assembled(g, true_g if centred else None, terms2, xhat, invvar)
        grad_weight = (dy * xhat).sum(0, arithmetic.column_sum)
        if saved.memory_efficient:
            divisor = np.where(is_kept, Extended(1), clamp_by_magnitude(rows.weight, held_eps))
            lost = late.lost_by_dividing(dy, g, shifted, xhat, invvar, divisor)
        else:
            lost = late.lost_by_scaling(dy, g, x, invvar, rows.weight)
        grad_input, grad_weight = grad_input.less_exact(lost.input), grad_weight.less_exact(lost.weight)
        if grad_residual is not None:
            grad_input = grad_input + held_exactly(rows.matrix(grad_residual, "grad_residual"), arithmetic)
        grad_bias = dy.sum(0, arithmetic.column_sum)

        # If x̂ may be 0 or have either sign, an infinite grad_output times x̂ may be NaN or an infinity of either sign.
        unsure = np.logical_or(np.isinf(xhat.error), abs(xhat.exact) <= xhat.error)
        # The sum is also unknown if finite terms may overflow, possibly to the infinity of the opposite sign.
        overflows = np.isinf(lost.input)
        for one in (g, true_g, true_g.sum(1, arithmetic.row_sum), terms2):
            overflows = overflows | np.isinf(one.error)
        infinite = np.isinf(dy.exact)
        no_scale = abs(invvar.exact) <= invvar.error  # the kernel may hold invvar as 0, and infinity times 0 is NaN
        unsure_rows = infinite.any(axis=1, keepdims=True) & ((unsure | overflows).any(axis=1, keepdims=True) | no_scale)
        unsure_columns = (infinite & (unsure | np.isinf(lost.weight))).any(axis=0, keepdims=True)

        storage = float_format(arithmetic.input), float_format(arithmetic.parameter)
        return NormGradients(
            or_unknown(grad_input.stored(storage[0]), unsure_rows, grad_input.exact, rows.leading + rows.normalized),
            or_unknown(grad_weight.stored(storage[1]), unsure_columns, grad_weight.exact, rows.normalized)
            if rows.has_weight
            else None,
            finished(grad_bias.stored(storage[1]), grad_bias.exact, rows.normalized) if rows.has_bias else None,
        )


def assembled(g: Inexact, terms1: Inexact | None, terms2: Inexact, xhat: Inexact, invvar: Inexact) -> Inexact:
    """Return ∂L/∂x = (n g - Σ₁ - x̂ Σ₂) r / n with an error that covers sums or means, in any order of evaluation.

    n g rounds once. A mean rounds at most twice: 1/n, and the product with 1/n. r / n and the product with it round
    three times. Means are n times smaller than sums, and so are their products with x̂, so both underflow sooner.
    """
    arithmetic, n = g.arithmetic, Extended(g.exact.shape[1])
    n_g = g.scaled(n).rounded_again(1)
    sum2 = terms2.sum(1, arithmetic.row_sum).rounded_again(2, n)
    away = -(xhat * sum2).rounded_again(1, n)
    if terms1 is None:
        whole = n_g + away
    else:
        sum1 = terms1.sum(1, arithmetic.row_sum).rounded_again(2, n)
        whole = sum_of_three(n_g, -sum1, away)
    return (whole * invvar).scaled(1 / n).rounded_again(2)


def handed_in(exact: ExtendedArray, error: ArrayLike | None, name: str, rows: Rows, arithmetic: Arithmetic) -> Inexact:
    """Return a saved statistic (n1, 1), with `error` or, if that is None, its rounding to the accumulator's format."""
    if error is not None:
        return Inexact(exact, rows.column(error, name), arithmetic)
    return through_memory(held_exactly(exact, arithmetic), arithmetic.u_format)


def or_unknown(
    error: ExtendedArray, unknown: np.ndarray | np.bool_, exact: ExtendedArray, shape: tuple[int, ...]
) -> FloatArray:
    """Return the finished bound, infinite where `unknown` is True."""
    return finished(np.where(unknown, Extended(np.inf), error), exact, shape)
