"""Merge the moments of parts of a set in a tree of neighbours: the true result, and a bound from the parts' bounds.

A rank of `normlab.distributed` has a part of each set: the part's count n_w, mean m_w and q_w = Σ (x - m_w)². The tree
merges parts 0 and 1, 2 and 3, and so on, then the results in the same way; an odd part out goes to the next level as it
is. P parts take ⌈log₂ P⌉ levels. Parts may have any sizes, also 0. Source: Chan, Golub and LeVeque 1983.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import ExtendedArray, FloatArray, extended, gamma_k

Part = TypeVar("Part")


class MergedMoments(NamedTuple):
    """The moments of whole sets, or bounds on their errors: each (sets,)."""

    mean: FloatArray
    m2: FloatArray


class Known(NamedTuple):
    """A part's exact moments, and bounds on the errors of the moments that a kernel holds. size: the exact count."""

    size: int
    mean: ExtendedArray
    m2: ExtendedArray
    mean_error: ExtendedArray
    m2_error: ExtendedArray


def merged_moments(counts: Sequence[int], means: ArrayLike, m2s: ArrayLike) -> MergedMoments:
    """Return mean and m2 of whole sets from their parts' exact moments, (parts, sets) each.

    >>> merged_moments([1, 3], [[1.0], [5.0]], [[0.0], [8.0]])  # 1 and 3, 5, 7
    MergedMoments(mean=array([4.]), m2=array([20.]))
    """
    whole = tree(_known(counts, means, m2s, 0.0, 0.0), merge_exactly)
    return MergedMoments(whole.mean.astype(np.float64), whole.m2.astype(np.float64))


def merged_moments_bound(
    counts: Sequence[int],
    means: ArrayLike,
    m2s: ArrayLike,
    mean_errors: ArrayLike,
    m2_errors: ArrayLike,
    arithmetic: Arithmetic,
) -> MergedMoments:
    """Return bounds on |kernel - merged_moments(…)|, given bounds on the errors of the parts that the kernel merges."""
    whole = tree(_known(counts, means, m2s, mean_errors, m2_errors), partial(merge, arithmetic=arithmetic))
    widened = 1 + 2.0**-40  # the bound is computed in floating point, too
    # The truth is rounded to float64 before a kernel is compared with it: half an ulp is at most 2⁻⁵³ of the value.
    return MergedMoments(
        whole.mean_error.astype(np.float64) * widened + np.abs(whole.mean).astype(np.float64) * 2.0**-53,
        whole.m2_error.astype(np.float64) * widened + whole.m2.astype(np.float64) * 2.0**-53,
    )


def tree(parts: Sequence[Part], pair: Callable[[Part, Part], Part]) -> Part:
    """Merge parts pairwise, neighbour with neighbour, until one is left, and return it; there is at least one part.

    >>> tree(["a", "b", "c", "d", "e"], lambda left, right: f"({left}{right})")
    '(((ab)(cd))e)'
    """
    while len(parts) > 1:
        even = len(parts) // 2 * 2
        parts = [*map(pair, parts[0:even:2], parts[1:even:2]), *parts[even:]]
    return parts[0]


def merge_exactly(a: Known, b: Known) -> Known:
    """Return the moments of the union of two parts by Chan's formula; the errors of the result are 0."""
    size = a.size + b.size
    share = extended(b.size) / max(1, size)
    delta = b.mean - a.mean
    m2 = a.m2 + b.m2 + delta * delta * a.size * share
    return Known(size, a.mean + delta * share, m2, 0 * a.mean_error, 0 * a.m2_error)


def merge(a: Known, b: Known, arithmetic: Arithmetic) -> Known:
    """Return the moments of the union of two parts, with bounds on the errors of what a kernel's merge holds.

    A hat marks what the kernel holds: m̂_a and q̂_a are its mean and m2 of part a, off by at most e_a and f_a. With
    n = n_a + n_b, s = n_b / n, w = n_a n_b / n, δ = m_b - m_a and τ = δ² w, the kernel computes
        mean^ = m̂_a + δ^ s            m2^ = q̂_a + q̂_b + τ^,   δ^ = m̂_b - m̂_a,   τ^ = δ^ (δ^ (n_a s))
    Mean: with exact arithmetic the errors of the parts count by 1 - s and s. δ^, s and their product round once each,
    which costs γ_3 of the product. The addition rounds once more, by u of the result:
        |mean^ - mean| <= E + u (|mean| + E),   E = (1 - s) e_a + s e_b + γ_3 s (|δ| + e_a + e_b)
    m2: δ^ is off by d = e_a + e_b before it rounds, so δ^² w is off by t. Six roundings follow: δ^ twice, s, n_a s and
    the two products:
        |τ^ - τ| <= t + γ_6 (τ + t),   t = w (2 |δ| d + d²)
    The errors f_a and f_b are added. The sum of three positive numbers rounds each of them at most twice, which costs
    γ_2 of the sum. Each product may also underflow, which costs η (half the smallest subnormal number).
    """
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    exact = merge_exactly(a, b)
    share = extended(b.size) / max(1, exact.size)
    weight = a.size * share
    delta, moved = abs(b.mean - a.mean), a.mean_error + b.mean_error
    mean_error = (1 - share) * a.mean_error + share * b.mean_error + gamma_k(3, u) * share * (delta + moved) + eta
    mean_error = mean_error + u * (abs(exact.mean) + mean_error)
    between, change = delta * delta * weight, weight * (2 * delta * moved + moved * moved)
    passed_on = a.m2_error + b.m2_error + change + gamma_k(6, u) * (between + change) + (2 + weight) * eta
    m2_error = passed_on + gamma_k(2, u) * (exact.m2 + passed_on)
    if not a.size or not b.size:  # the other part's moments, without a rounding
        full = a if a.size else b
        mean_error, m2_error = full.mean_error, full.m2_error
    return exact._replace(mean_error=mean_error, m2_error=m2_error)


def _known(
    counts: Sequence[int], means: ArrayLike, m2s: ArrayLike, mean_errors: ArrayLike, m2_errors: ArrayLike
) -> list[Known]:
    """Return the parts, one by one. Raise ValueError for arrays of other shapes than (parts, sets)."""
    mean, m2 = extended(means, "means"), extended(m2s, "m2s")
    if mean.ndim != 2 or mean.shape != m2.shape or len(mean) != len(counts) or not len(counts):
        raise ValueError(
            f"{len(counts)} counts need means and m2s of shape ({len(counts)}, sets), got {mean.shape} and {m2.shape}"
        )
    errors = (np.broadcast_to(extended(one), mean.shape) for one in (mean_errors, m2_errors))
    return [Known(int(count), *rest) for count, *rest in zip(counts, mean, m2, *errors, strict=True)]
