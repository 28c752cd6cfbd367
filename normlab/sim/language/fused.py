"""Compute fused multiply-adds, rounded once: for `cuda.fma`, and for the device's `%` of floats."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np


def fma64(a: Any, b: Any, c: Any) -> np.float64:
    """Return a·b + c in float64, rounded once."""
    # Fractions hold no inf and no NaN. With one of them no rounding takes place, so two operations give the same.
    if not (math.isfinite(a) and math.isfinite(b)):
        return np.float64(a) * np.float64(b) + np.float64(c)
    if not math.isfinite(c):
        return np.float64(c)
    # Exact rationals: NumPy has no fma, and math.fma came only with Python 3.13.
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return np.float64(a) * np.float64(b) + np.float64(c)  # for the sign of zero
    try:
        # Python divides two ints with one correct rounding, whatever their length.
        return np.float64(exact.numerator / exact.denominator)
    except OverflowError:
        return np.float64(math.inf if exact > 0 else -math.inf)


def narrow_fma(kind: Callable[[float], Any], a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c in float32 or a type of 16 bits, rounded once; `kind` rounds a float64 to that type.

    The product is exact in float64. The sum is rounded there to odd (if inexact, the last bit is 1), which makes the
    second rounding the only one that counts (Boldo & Melquiond 2008).
    """
    product, addend = float(a) * float(b), float(c)
    total = product + addend
    back = total - product
    # Knuth's TwoSum: the exact error of the float64 sum, in float64 operations.
    error = (product - (total - back)) + (addend - back)
    # Round to odd: an even last bit with an error moves one step towards the exact sum, whose last bit is then 1.
    if error and math.isfinite(error) and not np.float64(total).view(np.int64) & 1:
        total = math.nextafter(total, math.copysign(math.inf, error))
    return kind(total)
