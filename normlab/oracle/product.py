"""Compute the matrix product alpha A B + beta C in float64, and bound the error of a correct float32 kernel.

A product of two float32 numbers is exact in float64. Only the truth's sums round, 2^29 times finer than the kernel's
sums, and the bound includes this error. The bound assumes that the kernel computes every element of A B in one chain of
K multiplications and additions, fused or not, in any order, then scales it, and flushes nothing to zero. A kernel that
adds in a tree rounds less. Source: Higham 2002, section 3.1.
"""

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.floats import Extended, FloatArray, extended, float_format, gamma_k, unit_roundoff

SINGLE = float_format("float32")
U = SINGLE.unit_roundoff


def product(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None = None, alpha: float = 1.0, beta: float = 0.0
) -> FloatArray:
    """Return alpha A B + beta C, (M, N) float64, for a (M, K), b (K, N) and c (M, N).

    alpha and beta are rounded to float32, as a kernel receives them. As in BLAS, A and B are not read if alpha is 0,
    and C is not read if beta is 0, so that their NaNs and infinities have no effect.

    >>> product([[1, 2]], [[3], [4]], [[np.nan]], alpha=2)
    array([[22.]])
    """
    with np.errstate(all="ignore"):
        return np.add(*_terms(a, b, c, alpha, beta))


def product_bound(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None = None, alpha: float = 1.0, beta: float = 0.0
) -> FloatArray:
    """Return an elementwise absolute bound on |kernel - product(…)|, (M, N).

    The bound is NaN where the true value is an infinity or a NaN, which the kernel must reproduce. It is infinite where
    nothing is known, because a partial sum may pass the largest float32.
    """
    with np.errstate(all="ignore"):
        summed, added = _terms(a, b, c, alpha, beta)
        factor, exact = abs(float(np.float32(alpha))), summed + added
        terms = np.shape(a)[1] if factor else 0
        # Σ |a b| goes through K roundings in the kernel, and K float64 roundings in the truth. A product may underflow.
        magnitude = _finite(a) @ _finite(b) if terms else np.zeros(exact.shape)
        roundings = float(gamma_k(terms, Extended(U)) + gamma_k(terms + 2, Extended(unit_roundoff("float64"))))
        error = roundings * magnitude + terms * float(SINGLE.half_subnormal)
        largest = np.maximum(magnitude + error, factor * (magnitude + error))
        error = _scaled(summed, factor * error, factor)
        if beta := abs(float(np.float32(beta))):
            error = error + _scaled(added, 0.0, beta)
            error = error + U * (abs(exact) + error)
            largest = np.maximum(largest, abs(_known(added)))
        overflows = np.maximum(largest, abs(_known(exact))) + error > float(SINGLE.largest)
        special = np.where(np.isfinite(exact), error, np.nan)
        return np.where(overflows, np.inf, special * (1 + 2.0**-40))  # the factor covers the bound's own rounding


def _terms(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None, alpha: float, beta: float
) -> tuple[FloatArray, FloatArray | float]:
    """Return alpha A B and beta C."""
    left, right = _float64(a, "a"), _float64(b, "b")
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    if alpha == 0 or not left.shape[1]:
        summed = np.zeros((left.shape[0], right.shape[1]))
    else:
        summed = alpha * (left @ right)
    return summed, beta * _float64(c, "c") if beta else 0.0


def _scaled(exact: FloatArray | float, error: FloatArray | float, factor: float) -> FloatArray:
    """Return the error of a number after its multiplication by a factor; the factors 0 and 1 add no rounding."""
    if factor in (0, 1):
        return np.asarray(error)
    return error + U * (abs(_known(exact)) + error) + float(SINGLE.half_subnormal)


def _known(values: FloatArray | float) -> FloatArray:
    """Return the values with 0 in place of NaN and infinity, where the bound is NaN or infinite anyway."""
    return np.where(np.isfinite(values), values, 0.0)


def _finite(values: ArrayLike) -> FloatArray:
    return _known(abs(_float64(values, "array")))


def _float64(values: ArrayLike | None, name: str) -> FloatArray:
    return extended(values, name).astype(np.float64)
