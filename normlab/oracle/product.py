"""The matrix product alpha A B + beta C in float64, and how far from it a right float32 kernel may be.

A product of two float32 is exact in float64, so that only the truth's sums round, 2^29 times finer than the kernel's;
the bound counts that in. Assumed of the kernel: every element of A B is one chain of K multiplications and additions,
fused or not, in any order, then scaled; nothing is flushed to zero. A sum by a tree rounds less.
Source: Higham 2002, section 3.1.
"""

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.floats import Extended, FloatArray, extended, float_format, gamma_k, unit_roundoff

SINGLE = float_format("float32")
U = SINGLE.unit_roundoff


def product(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None = None, alpha: float = 1.0, beta: float = 0.0
) -> FloatArray:
    """Alpha A B + beta C, (M, N) float64, of a (M, K), b (K, N) and c (M, N).

    alpha and beta count as float32, as a kernel gets them. As in BLAS, A and B are not read for alpha = 0 and C is not
    for beta = 0: their NaNs and infinities stay out.

    >>> product([[1, 2]], [[3], [4]], [[np.nan]], alpha=2)
    array([[22.]])
    """
    with np.errstate(all="ignore"):
        return np.add(*_terms(a, b, c, alpha, beta))


def product_bound(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None = None, alpha: float = 1.0, beta: float = 0.0
) -> FloatArray:
    """Elementwise absolute bound on |kernel - product(…)|, (M, N).

    NaN where an infinity or a NaN is right, and the kernel must have the same; infinite where nothing is known, because
    a sum may pass the largest float32 on the way.
    """
    with np.errstate(all="ignore"):
        summed, added = _terms(a, b, c, alpha, beta)
        factor, exact = abs(float(np.float32(alpha))), summed + added
        terms = np.shape(a)[1] if factor else 0
        # Σ |a b| goes through K roundings here, and as many of float64 in the truth. Each product may be subnormal.
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
        return np.where(overflows, np.inf, special * (1 + 2.0**-40))  # and the bound's own rounding


def _terms(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None, alpha: float, beta: float
) -> tuple[FloatArray, FloatArray | float]:
    """Alpha A B and beta C."""
    left, right = _float64(a, "a"), _float64(b, "b")
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    if alpha == 0 or not left.shape[1]:
        summed = np.zeros((left.shape[0], right.shape[1]))
    else:
        summed = alpha * (left @ right)
    return summed, beta * _float64(c, "c") if beta else 0.0


def _scaled(exact: FloatArray | float, error: FloatArray | float, factor: float) -> FloatArray:
    """The error of a number that has been multiplied by a factor: one rounding, and none for 1 and 0."""
    if factor in (0, 1):
        return np.asarray(error)
    return error + U * (abs(_known(exact)) + error) + float(SINGLE.half_subnormal)


def _known(values: FloatArray | float) -> FloatArray:
    """0 in place of NaN and infinity: where they are, the bound is not asked."""
    return np.where(np.isfinite(values), values, 0.0)


def _finite(values: ArrayLike) -> FloatArray:
    return _known(abs(_float64(values, "array")))


def _float64(values: ArrayLike | None, name: str) -> FloatArray:
    return extended(values, name).astype(np.float64)
