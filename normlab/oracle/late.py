"""Bound what a kernel loses that multiplies sums, instead of their terms, by 1 / σ or 1 / γ.

    from the input     Σ ∂L/∂y γ x̂ is r Σ ∂L/∂y (x - mean) γ, and x̂ Σ₂ r / n is (x - mean) (Σ₂ / n r r)
    from the output    Σ over rows of ∂L/∂y x̂ is (Σ ∂L/∂y (y - β)) / γ, and x̂ Σ₂ r / n is x̂ (Σ₂ / n r)

It rounds as often as with x̂, so that `backward_bounds` holds. But its numbers are larger or smaller, so they over- and
underflow elsewhere. An underflow loses half the least subnormal number, which what follows multiplies.
"""

from typing import NamedTuple

import numpy as np

from normlab.oracle.floats import Extended, ExtendedArray
from normlab.oracle.inexact import Inexact


class Lost(NamedTuple):
    """Further errors of ∂L/∂x, (n1, n2), and of ∂L/∂γ, (1, n2); infinite where the kernel may overflow."""

    input: ExtendedArray
    weight: ExtendedArray


def lost_by_scaling(dy: Inexact, g: Inexact, x: Inexact, invvar: Inexact, weight: ExtendedArray) -> Lost:
    """Return what is lost from the saved input. x: less its mean. weight: γ, (n2,)."""
    products, r, n = dy * x, _largest(invvar), Extended(x.exact.shape[1])
    sum2 = (g * x).sum(1, dy.arithmetic.row_sum) * invvar
    slope = sum2.scaled(1 / n) * invvar * invvar
    of_term = abs(weight).mean() + 1  # ∂L/∂y (x - mean) may underflow before it is multiplied by γ
    factor = ((of_term * r + 1) * r + 1) * r + 1
    return _lost(products, (sum2, slope, x * slope, g * invvar), _largest(x) * factor, r)


def lost_by_dividing(
    dy: Inexact, g: Inexact, shifted: Inexact, xhat: Inexact, invvar: Inexact, divisor: ExtendedArray
) -> Lost:
    """Return what is lost from the saved output. shifted: y - β. divisor: of a column's sum for ∂L/∂γ, (n2,)."""
    products, n = dy * shifted, Extended(xhat.exact.shape[1])
    slope = products.sum(1, dy.arithmetic.row_sum).scaled(1 / n) * invvar
    return _lost(products, (slope, g * invvar), _largest(xhat) * (_largest(invvar) + 1), 1 / abs(divisor))


def _largest(held: Inexact) -> ExtendedArray:
    """Return the largest magnitudes that the kernel may hold."""
    return abs(held.exact) + held.error


def _lost(products: Inexact, others: tuple[Inexact, ...], size: ExtendedArray, scale: ExtendedArray) -> Lost:
    """Return what is lost with these products, which a row's sum has all of, and with numbers that follow from it.

    size: what multiplies an underflow in ∂L/∂x. scale: what multiplies the products, or their sums, for ∂L/∂γ.
    """
    twice = 2 * products.arithmetic.u_format.half_subnormal  # of at most two products between two factors
    overflows = np.isinf(products.error)
    lost = overflows.any(axis=1, keepdims=True)
    for one in others:
        lost = lost | np.isinf(one.error)
    of_weight = np.where(overflows, Extended(np.inf), twice * (scale + 1)).sum(0, keepdims=True)
    return Lost(np.where(lost, Extended(np.inf), twice * (size + 1)), of_weight)
