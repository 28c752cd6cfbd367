"""x̂ recomputed from the saved output, apex's `memory_efficient`: what it costs. Called by `backward_bounds`.

The output was rounded to storage as a number of size |β| + |γ x̂|; dividing its distance from β by γ magnifies
that error. Near γ = 0 apex clamps the weight, which changes x̂ by a known factor.
"""

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import (
    Extended,
    ExtendedArray,
    FloatArray,
    Format,
    extended,
    float_format,
    gamma_k,
    real,
    unit_roundoff,
)
from normlab.oracle.inexact import Inexact, held_exactly, unless_special
from normlab.oracle.rows import Rows


def recompute_error(
    xhat: ArrayLike, weight: ArrayLike | None, bias: ArrayLike | None, eps: float, dtype: DTypeLike
) -> FloatArray:
    """The law of recomputing: how far x̂ from an output saved in `dtype` is off, up to a small constant.

        u (|β| + |γ x̂|) / |clamp(γ)|  +  |x̂| |1 - γ / clamp(γ)|

    First the output's rounding, divided by the weight; then the clamp's bias, which is 0 where |γ| >= eps. So
    a bias that is large against its weight drowns x̂: with β = 1, γ = 1e-3 and float16 outputs, half a unit of
    x̂ may be lost. `xhat` (…, *normalized_shape), `weight` and `bias` (normalized_shape); the result is shaped
    like `xhat`.

    >>> float(recompute_error(1.0, 1e-3, 1.0, 1e-5, "float16").round(2))
    0.49
    """
    beta = extended(0.0 if bias is None else bias, "bias")
    gamma = extended(1.0 if weight is None else weight, "weight")
    clamped = gamma if weight is None else clamp_by_magnitude(gamma, Extended(real(eps)))
    magnitude = abs(extended(xhat, "xhat"))
    with np.errstate(all="ignore"):
        rounding = unit_roundoff(dtype) * (abs(beta) + abs(gamma) * magnitude) / abs(clamped)
        return (rounding + magnitude * abs(1 - gamma / clamped)).astype(np.float64)


def clamp_by_magnitude(weight: ExtendedArray, eps: Extended) -> ExtendedArray:
    """The weight, pushed out of (-eps, eps) with its sign kept; 0 becomes eps. apex's function of the same name."""
    return np.where(weight >= 0, np.maximum(weight, eps), np.minimum(weight, -eps))


def saved_output(xhat: ExtendedArray, rows: Rows, error: ArrayLike | None, arithmetic: Arithmetic) -> Inexact:
    """y as the forward stored it, off by `error` (x's shape) or by its rounding."""
    y = xhat * rows.weight + rows.bias
    storage = float_format(arithmetic.output)
    if error is None:
        return through_memory(held_exactly(y, arithmetic), storage)
    off = rows.matrix(error, "output_error")
    return Inexact(y, np.where(abs(y) + off > storage.largest, Extended(np.inf), off), arithmetic)


def through_memory(held: Inexact, storage: Format) -> Inexact:
    """The same numbers, stored in a format and loaded again; unknown where they are too large for it."""
    off = held.stored(storage)
    off = np.where(abs(held.exact) + off > storage.largest, Extended(np.inf), off)
    return Inexact(held.exact, off, held.arithmetic)


def completed(dy: Inexact, xhat: Inexact, shifted: Inexact, rows: Rows) -> Inexact:
    """∂L/∂y γ x̂ as a term of Σ₂, added in two portions: ∂L/∂y (y - β), then ∂L/∂y (γ x̂ - (y - β)).

    What y was off by cancels; but the portions, and the sums that they went through, were rounded by their own size.
    """
    arithmetic = dy.arithmetic
    term = dy * (xhat * held_exactly(rows.weight, arithmetic) if rows.has_weight else xhat)
    portions = abs(dy.exact) * (abs(shifted.exact) + 2 * shifted.error)
    roundings = gamma_k(arithmetic.row_sum + 4, arithmetic.u) * 2 * portions + 4 * arithmetic.u_format.half_subnormal
    return Inexact(term.exact, unless_special(term.error + roundings, term.error + shifted.error), arithmetic)


def unshifted(y: Inexact, rows: Rows) -> Inexact:
    """y - β, which is γ x̂."""
    return y - held_exactly(rows.bias, y.arithmetic) if rows.has_bias else y


def unscaled(shifted: Inexact, xhat: ExtendedArray, rows: Rows, eps: Extended) -> Inexact:
    """(y - β) / clamp(γ) as an x̂, or times a rounded 1 / clamp(γ), which rounds once more.

    A 16-bit weight may be inverted where it is used, by an instruction that is off by a unit in the last place: two
    roundings. The clamp's bias |x̂| |γ / clamp(γ) - 1| is part of the error.
    """
    if not rows.has_weight:
        return shifted
    narrow = float_format(shifted.arithmetic.parameter).unit_roundoff > shifted.arithmetic.u_format.unit_roundoff
    roundings = 2 if narrow else 1
    return shifted.divided_exactly(clamp_by_magnitude(rows.weight, eps)).rounded_again(roundings).instead_of(xhat)


def times_clamped_weight(dy: Inexact, rows: Rows, eps: Extended) -> Inexact:
    """∂L/∂y clamp(γ) as a ∂L/∂y γ. The clamp's bias |∂L/∂y| |clamp(γ) - γ| is part of its error."""
    if not rows.has_weight:
        return dy
    clamped = clamp_by_magnitude(rows.weight, eps)
    product = (dy * held_exactly(clamped, dy.arithmetic)).instead_of(dy.exact * rows.weight)
    # An infinite ε makes every weight infinite, and the product infinite or NaN.
    lost = np.isinf(clamped) & np.isfinite(rows.weight)
    return Inexact(product.exact, np.where(lost, Extended(np.inf), product.error), dy.arithmetic)
