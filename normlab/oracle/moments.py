"""Bound the error of a kernel's mean and variance of a row, under the assumptions in `forward_bounds`.

Each bound is derived in its docstring. Notation: γ_k = k u / (1 - k u), σ² the row's variance, mean|x| and rms its mean
magnitude and root mean square, η half the smallest subnormal number; a hat marks the value that the kernel holds.
"""

from functools import partial
from math import sqrt

import numpy as np

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import Extended, ExtendedArray, gamma_k
from normlab.oracle.inexact import Inexact
from normlab.oracle.merging import Known, merge, tree
from normlab.oracle.values import Normalised, row_mean

NOTHING_KNOWN, SAME_PATTERN = Extended(np.inf), Extended(np.nan)  # the special errors of `inexact`


def mean_and_variance(x: ExtendedArray, middle: Normalised, arithmetic: Arithmetic) -> tuple[Inexact, Inexact]:
    """Return mean and variance of every row of x (n1, n2), each (n1, 1), with the errors of the arithmetic's method."""
    methods = {"welford": welford, "two_pass": two_pass, "grouped": grouped, "merged": merged, "sharded": sharded}
    mean_error, variance_error = methods[arithmetic.statistics](x, middle.variance, arithmetic)
    # No sum of x passes n max|x|. A squared difference is at most the row's range plus the errors of two means, and its
    # factor is at most n. Chan's merge multiplies by n_A (n_B/n) before it squares: by 0 if one thread is empty, whose
    # mean of 0 may be far from the other thread's mean. The factor 4 covers rounding, and groups: their squares within
    # groups and between groups add up to twice as much.
    largest = abs(x).max(axis=1, keepdims=True, initial=0)
    apart = x.max(axis=1, keepdims=True) - x.min(axis=1, keepdims=True)
    apart = apart + 2 * gamma_k(4 * arithmetic.row_sum, arithmetic.u) * largest
    overflows = 4 * x.shape[1] * np.maximum(largest, apart * apart) > arithmetic.u_format.largest
    mean_error = np.where(overflows, NOTHING_KNOWN, mean_error)
    variance_error = np.where(overflows, NOTHING_KNOWN, variance_error)
    # A row with an infinity has no variance. Its mean is infinite, unless inf - inf makes it NaN. That happens in
    # Welford's steps and in Chan's merges, or if the finite values add up to an infinity of the opposite sign. The
    # factor 4 covers rounding.
    broken = ~np.isfinite(largest)
    added = np.where(np.isfinite(x), abs(x), 0).sum(axis=1, keepdims=True)
    may_overflow = 4 * added > arithmetic.u_format.largest
    either = np.isinf(middle.mean) & (may_overflow | (arithmetic.statistics not in ("two_pass", "grouped")))
    mean_error = np.where(broken, np.where(either, NOTHING_KNOWN, SAME_PATTERN), mean_error)
    variance_error = np.where(broken, SAME_PATTERN, variance_error)
    return Inexact(middle.mean, mean_error, arithmetic), Inexact(middle.variance, variance_error, arithmetic)


def mean_square(x: ExtendedArray, middle: Normalised, arithmetic: Arithmetic) -> Inexact:
    """Return RMS norm's Σx²/n: squares and additions round, and so does dividing by n (twice if it multiplies by 1/n).

    All terms are positive, so the relative error is at most γ_{D+3}. Underflow costs η per square, so η in the squares'
    mean, and another η for the division.
    """
    error = gamma_k(arithmetic.row_sum + 3, arithmetic.u) * middle.variance + 2 * arithmetic.u_format.half_subnormal
    overflows = x.shape[1] * (middle.variance + error) > arithmetic.u_format.largest
    error = np.where(overflows, NOTHING_KNOWN, error)
    return Inexact(middle.variance, np.where(np.isfinite(middle.variance), error, SAME_PATTERN), arithmetic)


def two_pass(x: ExtendedArray, variance: ExtendedArray, arithmetic: Arithmetic) -> tuple[ExtendedArray, ExtendedArray]:
    """Return bounds for mean = Σx/n, then variance = Σ(x - mean)²/n. Chan, Golub and LeVeque 1983, section 3.

    Mean: each x goes through D = row_terms + row_merges additions, then the division (2 roundings if times 1/n):
        |mean^ - mean| <= γ_{D+2} mean|x| =: d
    Variance: Σ(x - mean^)²/n is σ² + (mean^ - mean)² exactly; the first-order term is 0, because deviations add up to
    0. A square carries 2 roundings of its deviation and 1 of its own, then the sum's and the division's:
        |variance^ - σ²| <= d² + γ_{D+5} (σ² + d²)
    Underflow costs η in the mean. In the variance it costs η per square, so η in the squares' mean, and η for the
    division.
    """
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    mean_error = gamma_k(arithmetic.row_sum + 2, u) * row_mean(abs(x)) + eta
    squared = mean_error * mean_error
    return mean_error, squared + gamma_k(arithmetic.row_sum + 5, u) * (variance + squared) + 2 * eta


def grouped(x: ExtendedArray, variance: ExtendedArray, arithmetic: Arithmetic) -> tuple[ExtendedArray, ExtendedArray]:
    """Return bounds for two passes in every group w of n_w values, adding squares within and between the groups.

    s_w = Σ_w x, m_w = s_w / n_w, q_w = Σ_w (x - m_w)², then over the groups that are not empty:
        mean = Σ s_w / n,   variance = Σ (q_w + n_w (m_w - mean)²) / n
    This is formula 2.1 of Chan, Golub and LeVeque 1983, for any number of groups at once. D counts the additions in a
    group and over the groups.

    Mean: as in `two_pass`. A group's mean is off by |e_w| <= γ_{D+2} mean_w|x| + η <= γ_{D+2} rms_w + η, so that
        Σ n_w e_w² / n <= d²,   d := γ_{D+2} rms + η,   and the row's mean is off by |e| <= d, too
    Variance. Deviations from an exact mean add up to 0, within a group and between groups, so with these means
        Σ_w (x - m̂_w)² = Σ_w (x - m_w)² + n_w e_w²
        Σ n_w (m̂_w - mean^)² = Σ n_w (m_w - mean)² + 2 Σ n_w (m_w - mean) e_w + Σ n_w (e_w - e)²
    The exact squares add up to n σ². By Cauchy's inequality and Σ n_w (m_w - mean)² <= n σ² the rest, divided by n, is
    at most
        P = 2 σ d + d² + (d + d)²
    2 σ d is of first order, unlike in `two_pass`, because the errors of the groups' means need not cancel.
    A square within a group rounds 3 times (deviation twice, product), a square between groups 4 times (by n_w, too).
    The at most D additions round, and so does the addition in q_w + n_w (…). Dividing by n rounds twice if it
    multiplies by 1/n:
        |variance^ - σ²| <= P + γ_{D+6} (σ² + P)
    A square between groups skips the additions in a group, of which there is at least one, so D + 6 is enough for it.
    Underflow costs η per square and per product by n_w, and η for the division: less than 4 η.
    """
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    means = gamma_k(arithmetic.row_sum + 2, u)
    group_error = means * np.sqrt(row_mean(x * x)) + eta
    changes = 2 * np.sqrt(variance) * group_error + 5 * group_error * group_error
    variance_error = changes + gamma_k(arithmetic.row_sum + 6, u) * (variance + changes) + 4 * eta
    return means * row_mean(abs(x)) + eta, variance_error


def welford(x: ExtendedArray, variance: ExtendedArray, arithmetic: Arithmetic) -> tuple[ExtendedArray, ExtendedArray]:
    """Return bounds for Welford's steps (1962) in every thread, then Chan's merges (Chan, Golub, LeVeque 1983).

    Mean of a thread's first k values. Step k holds m̂_k = (m̂_{k-1} + (x_k - m̂_{k-1}) (1+θ) / k) (1+φ), |θ| <= γ_2 and
    |φ| <= u, so m̂_{k-1} counts by (1 - 1/k) (1 - θ/(k-1)) (1+φ) instead of 1 - 1/k. The first step is exact. Multiplied
    up from there: m̂_k is the exact mean of values x_i (1 + η_i) with
        |η_i| <= γ_{D_k},   D_k = k - 1 + (2+u) (1 + 1/2 + … + 1/(k-1))
    A merge m_A + (m_B - m_A) (n_B/n) (1+θ), |θ| <= γ_3, and rounded: m_B counts by n_B/n (1+θ), m_A by
    n_A/n (1 - θ n_B/n_A). With n_B <= n_A that adds 4 roundings, so with t terms and l levels of merges
        |mean^ - mean| <= γ_{D_t + 4l} mean|x|
    With n_B = ρ n_A, ρ > 1, it would add 1 + 3ρ, and kernels do make such errors. Only this step needs the assumption
    n_B <= n_A (`Arithmetic`). With n_A = 0 the merge is exact.
    Variance. With exact means the terms (x_k - m_{k-1}) (x_k - m_k) = δ_k ε_k = τ_k² and (m_B - m_A)² n_A n_B / n = τ²
    add up to n σ². With errors e_k in the means the terms change by at most
        |δ_k e_k| + |ε_k e_{k-1}| + |e_k e_{k-1}|,  where |δ_k| <= √2 τ_k and |ε_k| <= τ_k
        2 τ φ + φ²,                                 where φ² = (e_A - e_B)² n_A n_B / n <= n_A e_A² + n_B e_B²
    As (mean|x_1…x_k|)² <= (x_1² + … + x_k²) / k, with v = u / (1 - D u) for the longest chain D
        Σ e_k² <= v² c² Σx²,  c² = Σ_{k=2}^t D_k²/k,    Σ φ² <= v² f² Σx²,  f² = Σ_{j<l} (D_t + 4j)²
    and by Cauchy's inequality all changes, divided by n, are together at most
        P = v σ rms √((1+√2)² c² + 4 f²) + v² rms² (c² + f²)
    A term rounds 3 times in a step and 6 times in a merge (δ (δ (n_A (n_B/n))): δ twice, n_B/n, three products). The
    additions round, 1 per step and 2 per level, and so does the division:
        |variance^ - σ²| <= P + γ_K (σ² + P),   K = 2l + max(t + 2, 5) + 1
    To first order that is a multiple of D u κ σ² with κ = rms/σ, as in Chan, Golub and LeVeque's table of bounds.
    Underflow costs η per step and per level in the mean; in the variance, η per level and less than 6 η for the rest.
    """
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    n2 = x.shape[1]
    terms, levels = min(arithmetic.row_terms, n2), min(arithmetic.row_merges, n2 - 1)
    k = np.arange(2, terms + 1)
    steps = (k - 1) + (2 + u) * np.cumsum(1 / (k - 1))  # D_k
    thread = arithmetic.oracle_sum + (steps[-1] if terms > 1 else 0)  # D_t
    longest = thread + 4 * levels
    mean_error = gamma_k(longest, u) * row_mean(abs(x)) + (terms + levels) * eta

    c2 = float((steps**2 / k).sum())
    f2 = sum((thread + 4 * level) ** 2 for level in range(levels))
    v = gamma_k(longest, u) / longest
    mean_of_squares = row_mean(x * x)
    changes = v * np.sqrt(variance * mean_of_squares) * sqrt((1 + sqrt(2)) ** 2 * c2 + 4 * f2)
    changes = changes + v * v * mean_of_squares * (c2 + f2)
    roundings = gamma_k(2 * levels + max(terms + 2, 5) + 1 + arithmetic.oracle_sum, u)
    return mean_error, changes + roundings * (variance + changes) + (levels + 6) * eta


def merged(x: ExtendedArray, variance: ExtendedArray, arithmetic: Arithmetic) -> tuple[ExtendedArray, ExtendedArray]:
    """Return bounds for two passes in every group w of n_w values, then Chan's merges of the groups in up to l levels.

    D counts the additions in a group. A group's mean is off by |e_w| <= γ_{D+2} mean_w|x|, and its sum of squares is
    m2_w + n_w e_w² (`two_pass`). A merge adds 1 + 3ρ roundings (`welford`): 5, assuming ρ = n_B / n_A <= 4/3. So
        |mean^ - mean| <= γ_{D+2+5l} mean|x|
    Changes of the variance, as in `welford` but with Σ n_w e_w² in place of the steps':
        P = 2 v σ rms f + v² rms² ((D+2)² + f²),   f² = Σ_{j<l} (D + 2 + 5j)²
    A square rounds 3 times and goes through D additions in its group. A merge's term rounds 6 times. Both go through 2
    additions per level and the division:
        |variance^ - σ²| <= P + γ_K (σ² + P),   K = D + 2l + 7
    Underflow as in `welford`.
    """
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    levels, group = arithmetic.row_merges, arithmetic.row_sum + 2
    longest = group + 5 * levels
    mean_error = gamma_k(longest, u) * row_mean(abs(x)) + (levels + 1) * eta

    f2 = sum((group + 5 * level) ** 2 for level in range(levels))
    v = gamma_k(longest, u) / longest
    mean_of_squares = row_mean(x * x)
    changes = 2 * v * np.sqrt(variance * mean_of_squares * f2) + v * v * mean_of_squares * (group**2 + f2)
    roundings = gamma_k(group + 2 * levels + 5, u)
    return mean_error, changes + roundings * (variance + changes) + (levels + 6) * eta


def sharded(x: ExtendedArray, variance: ExtendedArray, arithmetic: Arithmetic) -> tuple[ExtendedArray, ExtendedArray]:
    """Return bounds for two corrected passes in every shard, then the tree of Chan's merges in `merging`, then m2 / n.

    Dividing the merged m2 by n rounds once.
    """
    sizes = arithmetic.shards
    if sum(sizes) != x.shape[1]:
        raise ValueError(f"shards={sizes} are {sum(sizes)} columns, but x has {x.shape[1]}")
    starts = np.cumsum((0, *sizes))[:-1]
    parts = [corrected(x[:, start : start + size], arithmetic) for start, size in zip(starts, sizes, strict=True)]
    whole = tree(parts, partial(merge, arithmetic=arithmetic))
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    changes = whole.m2_error / x.shape[1]
    return whole.mean_error, changes + gamma_k(1 + arithmetic.oracle_sum, u) * (variance + changes) + eta


def corrected(x: ExtendedArray, arithmetic: Arithmetic) -> Known:
    """Return mean and m2 of a shard (rows, n), each (rows, 1), with bounds for two passes and their correction.

        m = Σx/n,   c = Σ(x - m)/n,   mean = m + c,   m2 = Σ(x - m)² - n c²
    Chan, Golub and LeVeque 1983, section 3. Let m̂ be the mean that the kernel holds, |m̂ - mean| <= d as in `two_pass`,
    and e = |x - m̂|, so mean e <= mean|x - mean| + d =: a. Then c is mean - m̂ exactly, and with D additions
        |c^ - c| <= γ_{D+3} a + η =: f,   |mean^ - mean| <= f + u (|mean| + f)
        |Σ^(x - m̂)² - Σ(x - m̂)²| <= γ_{D+3} n (σ² + d²)
        |(n c²)^ - n c²| <= g + γ_3 n (d² + g/n),   g = n (2 d f + f²)
    The difference rounds once. Underflow costs η per square and per product.
    """
    n, nothing = x.shape[1], 0 * abs(x).sum(axis=1, keepdims=True)
    if not n:
        return Known(0, nothing, nothing, nothing, nothing)
    mean = row_mean(x)
    mean = mean + row_mean(x - mean)
    m2 = n * row_mean((x - mean) ** 2)
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    d = gamma_k(arithmetic.row_sum + 2, u) * row_mean(abs(x)) + eta
    passes = gamma_k(arithmetic.row_sum + 3, u)
    f = passes * (row_mean(abs(x - mean)) + d) + eta
    squares = passes * (m2 + n * d * d) + n * eta
    g = n * (2 * d * f + f * f)
    product = g + gamma_k(3, u) * (n * d * d + g) + 2 * n * eta
    mean_error = np.asarray(f + u * (abs(mean) + f), Extended)
    m2_error: ExtendedArray = squares + product
    return Known(n, mean, m2, mean_error, m2_error + u * (m2 + m2_error))
