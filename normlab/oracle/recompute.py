"""Bound the error of x̂ recomputed from the saved output, apex's `memory_efficient`.

`backward_bounds` and `gated_norm` call this file.

The forward rounded the output, a number of size |β| + |γ x̂|, to storage. Dividing y - β by γ magnifies this error.
Near γ = 0 apex clamps the weight, which changes x̂ by a known factor.
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
    """Return the error, up to a small constant, of x̂ recomputed from an output saved in `dtype`.

        u (|β| + |γ x̂|) / |clamp(γ)|  +  |x̂| |1 - γ / clamp(γ)|

    The first term is the output's rounding, divided by the weight. The second is the clamp's bias, which is 0 where
    |γ| >= eps. A bias that is much larger than its weight therefore hides x̂: with β = 1, γ = 1e-3 and float16 outputs,
    x̂ may be off by half a unit. `xhat` has the shape (…, *normalized_shape), `weight` and `bias` have the shape
    normalized_shape, and the result is shaped like `xhat`.

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
    """Return the weight with magnitudes below eps raised to eps and signs kept; 0 becomes eps. As apex's function."""
    return np.where(weight >= 0, np.maximum(weight, eps), np.minimum(weight, -eps))


def saved_output(xhat: ExtendedArray, rows: Rows, error: ArrayLike | None, arithmetic: Arithmetic) -> Inexact:
    """Return y as the forward stored it, with `error` (x's shape) or, if that is None, the error of its rounding."""
    y = xhat * rows.weight + rows.bias
    storage = float_format(arithmetic.output)
    if error is None:
        return through_memory(held_exactly(y, arithmetic), storage)
    off = rows.matrix(error, "output_error")
    return Inexact(y, np.where(abs(y) + off > storage.largest, Extended(np.inf), off), arithmetic)


def through_memory(held: Inexact, storage: Format) -> Inexact:
    """Return the numbers after a store to a format and a load; unknown where they are too large for the format."""
    off = held.stored(storage)
    off = np.where(abs(held.exact) + off > storage.largest, Extended(np.inf), off)
    return Inexact(held.exact, off, held.arithmetic)


def completed(dy: Inexact, xhat: Inexact, shifted: Inexact, rows: Rows) -> Inexact:
    """Return ∂L/∂y γ x̂ as a term of Σ₂ that is added in two portions: ∂L/∂y (y - β), then ∂L/∂y (γ x̂ - (y - β)).

    The error of y cancels. The roundings of the portions and of their sums remain, and are proportional to the
    portions' sizes.
    """
    arithmetic = dy.arithmetic
    term = dy * (xhat * held_exactly(rows.weight, arithmetic) if rows.has_weight else xhat)
    portions = abs(dy.exact) * (abs(shifted.exact) + 2 * shifted.error)
    roundings = gamma_k(arithmetic.row_sum + 4, arithmetic.u) * 2 * portions + 4 * arithmetic.u_format.half_subnormal
    return Inexact(term.exact, unless_special(term.error + roundings, term.error + shifted.error), arithmetic)


def unshifted(y: Inexact, rows: Rows) -> Inexact:
    """Return y - β, which is γ x̂."""
    return y - held_exactly(rows.bias, y.arithmetic) if rows.has_bias else y


def unscaled(shifted: Inexact, xhat: ExtendedArray, rows: Rows, eps: Extended) -> Inexact:
    """Return (y - β) / clamp(γ), measured against x̂. The clamp's bias |x̂| |γ / clamp(γ) - 1| is part of the error.

    A kernel may multiply by 1 / clamp(γ) instead, which an instruction gives to within one unit in the last place: that
    is two roundings more.
    """
    if not rows.has_weight:
        return shifted
    return shifted.divided_exactly(clamp_by_magnitude(rows.weight, eps)).rounded_again(2).instead_of(xhat)


def times_clamped_weight(dy: Inexact, rows: Rows, eps: Extended) -> Inexact:
    """Return ∂L/∂y clamp(γ), measured against ∂L/∂y γ: the clamp's bias |∂L/∂y| |clamp(γ) - γ| is part of the error."""
    if not rows.has_weight:
        return dy
    clamped = clamp_by_magnitude(rows.weight, eps)
    product = (dy * held_exactly(clamped, dy.arithmetic)).instead_of(dy.exact * rows.weight)
    # An infinite ε makes every clamped weight infinite, and the product infinite or NaN.
    lost = np.isinf(clamped) & np.isfinite(rows.weight)
    return Inexact(product.exact, np.where(lost, Extended(np.inf), product.error), dy.arithmetic)
