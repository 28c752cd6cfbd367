"""Fused multiply-add, rounded once: what `cuda.fma` computes, and what the device's `%` of floats is made of."""

import math
from fractions import Fraction
from typing import Any

import numpy as np


def fma64(a: Any, b: Any, c: Any) -> np.float64:
    """Return a·b + c in float64, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return np.float64(a) * np.float64(b) + np.float64(c)
    if not math.isfinite(c):
        return np.float64(c)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return np.float64(a) * np.float64(b) + np.float64(c)  # for the sign of zero
    try:
        return np.float64(exact.numerator / exact.denominator)
    except OverflowError:
        return np.float64(math.inf if exact > 0 else -math.inf)


def narrow_fma(kind: type[np.floating], a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c in float32 or float16, rounded once.

    The product is exact in float64. The sum is rounded there to odd (if inexact, the last bit is 1), which makes the
    second rounding the only one that counts (Boldo & Melquiond 2008).
    """
    product, addend = float(a) * float(b), float(c)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    if error and math.isfinite(error) and not np.float64(total).view(np.int64) & 1:
        total = math.nextafter(total, math.copysign(math.inf, error))
    return kind(total)
