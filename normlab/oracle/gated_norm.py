"""Compute RMSNorm with a gate, forward and backward, and bound a kernel's error.

    norm_before_gate      output = x̂ γ silu(z)                  x̂ = x r
    otherwise             output = û γ,  u = x silu(z)          û = u r        r = 1/√(mean square + ε)

silu(z) = z σ(z) and silu'(z) = σ(z) (1 + z σ(-z)). The gradients, with through = (g - x̂ mean(g x̂)) r:

    norm_before_gate      g = ∂L/∂y silu γ    ∂L/∂x = through         ∂L/∂z = ∂L/∂y x̂ γ silu'
    otherwise             g = ∂L/∂y γ         ∂L/∂x = through silu    ∂L/∂z = through x silu'

The bounds follow a kernel's operations with numbers that carry their error (`inexact`), under the assumptions stated in
`forward_bounds`. A kernel holds σ through e = exp(-|z|), which CUDA's `__expf` gives within 2 + 1.173 |z| units in the
last place (CUDA C++ Programming Guide, intrinsic functions); an exact exponential is within that, too.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.backward_bounds import assembled, handed_in, or_unknown
from normlab.oracle.floats import Extended, ExtendedArray, FloatArray, extended, float_format, gamma_k
from normlab.oracle.forward_bounds import accumulator_eps, finished, inverse_root
from normlab.oracle.inexact import Inexact, held_exactly
from normlab.oracle.recompute import clamp_by_magnitude, through_memory
from normlab.oracle.rows import Rows, as_rows
from normlab.oracle.values import column_sum, narrow, row_mean


class GatedResult(NamedTuple):
    """A forward's results, or bounds on them: `output` in x's shape, `invvar` in its leading dimensions."""

    output: FloatArray
    invvar: FloatArray


class GatedGradients(NamedTuple):
    """A backward's results, or bounds on them: the first two in x's shape; grad_weight is None without a weight."""

    grad_input: FloatArray
    grad_gate: FloatArray
    grad_weight: FloatArray | None


class Silu(NamedTuple):
    """silu and its derivative of a gate."""

    value: Inexact
    slope: Inexact


def gated_rms_norm(
    x: ArrayLike, gate: ArrayLike, weight: ArrayLike | None, eps: float, norm_before_gate: bool = True
) -> GatedResult:
    """Return the RMSNorm of x over the last dimension with a gate.

    >>> gated_rms_norm([[3.0, 4.0]], [[0.0, 50.0]], None, 0.0).output.round(2).tolist()
    [[0.0, 56.57]]
    """
    rows = _rows(x, weight, eps)
    with np.errstate(all="ignore"):
        silu, _ = silu_and_slope(rows.matrix(gate, "gate"))
        normalised, invvar = _normalised(rows.x if norm_before_gate else rows.x * silu, rows.eps)
        output = normalised * rows.weight * (silu if norm_before_gate else 1)
        return GatedResult(narrow(output, rows.leading + rows.normalized), narrow(invvar, rows.leading))


def gated_rms_norm_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    gate: ArrayLike,
    weight: ArrayLike | None,
    eps: float,
    norm_before_gate: bool = True,
) -> GatedGradients:
    """Return the gradients of sum(grad_output · gated_rms_norm(x, gate))."""
    rows = _rows(x, weight, eps)
    dy = rows.matrix(grad_output, "grad_output")
    with np.errstate(all="ignore"):
        silu, slope = silu_and_slope(rows.matrix(gate, "gate"))
        xhat, invvar = _normalised(rows.x if norm_before_gate else rows.x * silu, rows.eps)
        grad = dy * silu if norm_before_gate else dy
        g = grad * rows.weight
        through = (g - xhat * row_mean(g * xhat)) * invvar
        if norm_before_gate:
            grad_input, grad_gate = through, dy * xhat * rows.weight * slope
        else:
            grad_input, grad_gate = through * silu, through * rows.x * slope
        shape = rows.leading + rows.normalized
        grad_weight = narrow(column_sum(grad * xhat), rows.normalized) if rows.has_weight else None
        return GatedGradients(narrow(grad_input, shape), narrow(grad_gate, shape), grad_weight)


def gated_rms_norm_bound(
    x: ArrayLike,
    gate: ArrayLike,
    weight: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
    norm_before_gate: bool = True,
) -> GatedResult:
    """Return elementwise absolute bounds on |kernel - gated_rms_norm(x, …)|, shaped like that function's result."""
    rows = _rows(x, weight, eps)
    with np.errstate(all="ignore"):
        silu = held_silu(rows.matrix(gate, "gate"), arithmetic).value
        values = held_exactly(rows.x, arithmetic)
        gated = values * silu
        invvar = _held_invvar(values if norm_before_gate else gated, rows, arithmetic)
        # the gate comes first in either order: x silu r γ
        output = gated * invvar
        if rows.has_weight:
            output = output * held_exactly(rows.weight, arithmetic)
        # A kernel may also gate x̂ γ: its products underflow elsewhere.
        off = output.rounded_again(1).stored(float_format(arithmetic.output))
        return GatedResult(
            finished(off, output.exact, rows.leading + rows.normalized),
            finished(invvar.error, invvar.exact, rows.leading),
        )


def gated_rms_norm_backward_bound(
    grad_output: ArrayLike,
    x: ArrayLike,
    gate: ArrayLike,
    weight: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
    norm_before_gate: bool = True,
    *,
    memory_efficient: bool = False,
    errors: GatedResult | None = None,
) -> GatedGradients:
    """Return elementwise absolute bounds on the kernel's gradients.

    errors: bounds on the forward's results, of which a backward gets invvar and, with memory_efficient, the output;
    None: exact, but rounded to storage. With memory_efficient the bound contains the clamp's bias where
    |γ silu(z)| < ε: there x̂ is wrong.
    """
    rows = _rows(x, weight, eps)
    dy = held_exactly(rows.matrix(grad_output, "grad_output"), arithmetic)
    with np.errstate(all="ignore"):
        silu, slope = held_silu(rows.matrix(gate, "gate"), arithmetic)
        values = held_exactly(rows.x, arithmetic)
        normalised = values if norm_before_gate else values * silu
        _, exact_invvar = _normalised(normalised.exact, rows.eps)
        invvar = handed_in(exact_invvar, None if errors is None else errors.invvar, "invvar", rows, arithmetic)
        xhat = normalised * invvar
        gamma = held_exactly(rows.weight, arithmetic)
        if memory_efficient:
            output_error = None if errors is None else rows.matrix(errors.output, "output")
            xhat = _recomputed(xhat.exact, silu * gamma if rows.has_weight else silu, output_error, eps, arithmetic)
            xhat = xhat.rounded_again(2)  # a kernel may hand on x̂ / r
        grad = dy * silu if norm_before_gate else dy
        g = grad * gamma if rows.has_weight else grad
        through = assembled(g, None, g * xhat, xhat, invvar)
        grad_weight = (grad * xhat).sum(0, arithmetic.column_sum)
        if norm_before_gate:
            grad_input, grad_gate = through, dy * (xhat * gamma if rows.has_weight else xhat) * slope
        else:
            grad_input, grad_gate = through * silu, through * values * slope
        storage, parameter = float_format(arithmetic.input), float_format(arithmetic.parameter)
        # An infinite grad_output times a number that rounding may move to 0 or beyond is NaN, or either infinity.
        infinite, shape = np.isinf(dy.exact), rows.leading + rows.normalized
        unsure_rows, unsure_columns = infinite.any(axis=1, keepdims=True), infinite.any(axis=0, keepdims=True)
        return GatedGradients(
            or_unknown(grad_input.stored(storage), unsure_rows, grad_input.exact, shape),
            or_unknown(grad_gate.stored(storage), unsure_rows, grad_gate.exact, shape),
            or_unknown(grad_weight.stored(parameter), unsure_columns, grad_weight.exact, rows.normalized)
            if rows.has_weight
            else None,
        )


def silu_and_slope(z: ExtendedArray) -> tuple[ExtendedArray, ExtendedArray]:
    """Return silu(z) and its derivative. silu(-∞), which is -∞ times 0, is NaN, as in a kernel and in PyTorch."""
    sigma, rest = sigmoids(z)
    return z * sigma, sigma * (1 + z * rest)


def sigmoids(z: ExtendedArray) -> tuple[ExtendedArray, ExtendedArray]:
    """Return σ(z) and σ(-z)."""
    small = np.exp(-abs(z))
    larger = 1 / (1 + small)
    smaller = small * larger
    return np.where(z >= 0, larger, smaller), np.where(z >= 0, smaller, larger)


def held_silu(z: ExtendedArray, arithmetic: Arithmetic) -> Silu:
    """Return silu and its derivative as a kernel holds them.

    e has a relative error of at most (4 + 2.346 |z|) u, or is flushed to 0 below the smallest normal number. Of
    larger = 1 / (1 + e) the error of e moves only e / (1 + e). The sum rounds once, and the reciprocal is off by at
    most one unit in the last place, 2 u. smaller = e larger rounds once more.
    """
    sigma, rest = sigmoids(z)
    smaller = np.minimum(sigma, rest)
    of_e = gamma_k(1, arithmetic.u) * (4 + Extended("2.346") * abs(z))
    tiny = 4 * float_format(arithmetic.accumulator).half_subnormal / arithmetic.u  # above the smallest normal number
    larger_off = gamma_k(4, arithmetic.u) + smaller * of_e * (1 + arithmetic.u)
    smaller_off = (gamma_k(6, arithmetic.u) + of_e) * (1 + 8 * arithmetic.u) * smaller + tiny
    special = np.where(np.isnan(z), Extended(np.nan), Extended(0))

    def held(one: ExtendedArray) -> Inexact:
        return Inexact(one, np.where(one <= 0.5, smaller_off, larger_off) + special, arithmetic)

    gate = held_exactly(z, arithmetic)
    one = held_exactly(np.ones_like(z), arithmetic)
    return Silu(gate * held(sigma), held(sigma) * (one + gate * held(rest)))


def _recomputed(
    xhat: ExtendedArray, factor: Inexact, error: ExtendedArray | None, eps: float, arithmetic: Arithmetic
) -> Inexact:
    """Return x̂ = y / clamp(factor) as a kernel holds it, measured against x̂. factor: silu γ.

    The clamp moves two factors of one sign no further apart than they are. A factor that may have the other sign, or be
    0 while the exact one is not, leaves nothing known; a gate or weight of exactly 0 gives exactly 0.
    """
    y = xhat * factor.exact
    storage = float_format(arithmetic.output)
    if error is None:
        saved = through_memory(held_exactly(y, arithmetic), storage)
    else:
        saved = Inexact(y, np.where(abs(y) + error > storage.largest, Extended(np.inf), error), arithmetic)
    zero = factor.exact == 0
    off = np.where(zero, Extended(0), np.where(factor.error >= abs(factor.exact), Extended(np.inf), factor.error))
    clamped = clamp_by_magnitude(factor.exact, accumulator_eps(eps, arithmetic))
    quotient = y / clamped
    least = abs(clamped) - off
    moved = (saved.error + abs(quotient) * off) / least
    moved = np.where((off >= abs(clamped)) | np.isnan(moved), Extended(np.inf), moved)
    moved = np.where(np.isfinite(quotient), moved, Extended(np.inf))
    # a reciprocal within one unit in the last place, and a product; a tiny divisor's reciprocal may overflow
    moved = np.where(least * float_format(arithmetic.accumulator).largest < 4, Extended(np.inf), moved)
    underflows = np.maximum(abs(y), 1) / np.minimum(least, 1)
    return Inexact(quotient, moved, arithmetic).rounded_again(3, underflows).instead_of(xhat)


def _held_invvar(normalised: Inexact, rows: Rows, arithmetic: Arithmetic) -> Inexact:
    """Return r as a kernel holds it, of rows that are inexact themselves."""
    n = Extended(rows.n2)
    squares = (normalised * normalised).sum(1, arithmetic.row_sum).scaled(1 / n).rounded_again(2)
    _, exact = _normalised(normalised.exact, rows.eps)
    return inverse_root(squares, rows.eps, exact)


def _normalised(values: ExtendedArray, eps: float) -> tuple[ExtendedArray, ExtendedArray]:
    """Return the normalised rows, and r."""
    invvar = 1 / np.sqrt(row_mean(values * values) + eps)
    return values * invvar, invvar


def _rows(x: ArrayLike, weight: ArrayLike | None, eps: float) -> Rows:
    values = extended(x, "x")
    return as_rows(values, values.shape[-1], weight, None, eps)
