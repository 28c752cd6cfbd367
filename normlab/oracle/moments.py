"""How far off a kernel's mean and variance of a row may be. Called by `forward_bounds`.

Each function derives its bound in its docstring, for the assumptions stated in `forward_bounds`. Notation: γ_k = k u / (1 - k u),
σ² the row's variance, mean|x| and rms the row's mean magnitude and root mean square, η half the smallest subnormal number.
"""

from math import sqrt

import numpy as np

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import Extended, ExtendedArray, gamma_k
from normlab.oracle.inexact import Inexact
from normlab.oracle.values import Normalised, row_mean


def mean_and_variance(x: ExtendedArray, middle: Normalised, arithmetic: Arithmetic) -> tuple[Inexact, Inexact]:
    """Of every row of x (n1, n2), each (n1, 1), by the arithmetic's way of computing them."""
    with_errors = welford if arithmetic.statistics == "welford" else two_pass
    mean_error, variance_error = with_errors(x, middle.variance, arithmetic)
    largest = arithmetic.u_format.largest
    # Sums of x, and squares times counts, must stay finite on the way.
    n2 = x.shape[1]
    overflows = (abs(x).sum(axis=1, keepdims=True) > largest) | (n2 * n2 * (middle.variance + variance_error) > largest)
    return (
        Inexact(middle.mean, np.where(overflows, np.inf, mean_error), arithmetic),
        Inexact(middle.variance, np.where(overflows, np.inf, variance_error), arithmetic),
    )


def mean_square(n2: int, middle: Normalised, arithmetic: Arithmetic) -> Inexact:
    """Of RMS norm: every square and every addition rounds, and so does dividing by n (or multiplying by a rounded 1/n).

    All terms are positive, so the relative error is at most γ_{D+3}. Underflow costs η a square, as much as η in their mean.
    """
    roundings = gamma_k(arithmetic.row_sum + 3, arithmetic.u)
    error = roundings * middle.variance + 2 * arithmetic.u_format.half_subnormal
    overflows = n2 * (middle.variance + error) > arithmetic.u_format.largest
    return Inexact(middle.variance, np.where(overflows, Extended(np.inf), error), arithmetic)


def two_pass(x: ExtendedArray, variance: ExtendedArray, arithmetic: Arithmetic) -> tuple[ExtendedArray, ExtendedArray]:
    """mean = Σx / n, then variance = Σ(x - mean)² / n.

    Mean: each x goes through D = row_terms + row_merges additions and the division (2 roundings if it multiplies by 1/n):
        |mean^ - mean| <= γ_{D+2} mean|x| =: d
    Variance: Σ(x - mean^)² / n is σ² + (mean^ - mean)² exactly, the first-order term vanishes because deviations add up to 0.
    Each square carries 2 roundings of its deviation and 1 of its own, then the sum's and the division's:
        |variance^ - σ²| <= d² + γ_{D+5} (σ² + d²)
    Chan, Golub and LeVeque 1983, equation 3.4: the relative error is about n u + n² u² κ², with κ = rms / σ.
    """
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    mean_error = gamma_k(arithmetic.row_sum + 2, u) * row_mean(abs(x)) + eta
    squared = mean_error * mean_error
    return mean_error, squared + gamma_k(arithmetic.row_sum + 5, u) * (variance + squared) + 2 * eta


def welford(x: ExtendedArray, variance: ExtendedArray, arithmetic: Arithmetic) -> tuple[ExtendedArray, ExtendedArray]:
    """Welford's update in every thread (Welford 1962), Chan's merge of the threads (Chan, Golub, LeVeque 1983).

    Mean of a thread's first k values. Step k holds m̂_k = (m̂_{k-1} + (x_k - m̂_{k-1})(1+θ)/k)(1+φ), |θ| <= γ_2, |φ| <= u, hence
    m̂_{k-1} weighs (1 - 1/k)(1 - θ/(k-1))(1+φ) instead of 1 - 1/k. Multiplied up from the first step, which is exact, the mean
    held is the exact mean of values x_i (1+η_i) with
        |η_i| <= γ_{D_k},   D_k = k - 1 + (2+u) (1 + 1/2 + … + 1/(k-1))
    A merge m_A + (m_B - m_A)(n_B/n), n_B <= n_A, adds 4 roundings to that, so with t terms and l levels of merges
        |mean^ - mean| <= γ_{D_t + 4l} mean|x|
    Variance. With exact means the terms δ_k ε_k = (x_k - mean_{k-1})(x_k - mean_k) = τ_k² and (m_B - m_A)² n_A n_B / n = τ²
    add up to n σ². The held ones use means that are off by e_k: they change by |δ_k e_k| + |ε_k e_{k-1}| + |e_k e_{k-1}|, where
    |δ_k| <= √2 τ_k and |ε_k| <= τ_k, and by 2τφ + φ² with φ² = (e_B - e_A)² n_A n_B / n <= n_A e_A² + n_B e_B².
    By Cauchy's inequality A_k = mean|x_1…x_k| obeys k A_k² <= Σx², so that (v = u / (1 - D u), D the longest chain)
        Σe_k² <= v² c² Σx²,  c² = Σ_{k=2}^t D_k²/k,    Σφ² <= v² f² Σx²,  f² = Σ_{levels j} (D_t + 4j)²
    and by Cauchy's inequality again the sum of the changes, divided by n, is at most
        P = v σ rms √((1+√2)² c² + 4 f²) + v² rms² (c² + f²)
    Then come the roundings of the terms themselves, 3 in a step, 6 in a merge, and of their additions, 1 a step, 2 a level:
        |variance^ - σ²| <= P + γ_{2l + max(t+2, 5) + 1} (σ² + P)
    To first order in u this is D u κ σ², κ = rms / σ, as in Chan, Golub and LeVeque's table 2.
    """
    u, eta = arithmetic.u, arithmetic.u_format.half_subnormal
    n2 = x.shape[1]
    terms, merges = min(arithmetic.row_terms, n2), min(arithmetic.row_merges, n2 - 1)
    k = np.arange(2, terms + 1)
    chain = (k - 1) + (2 + u) * np.cumsum(1 / (k - 1))  # D_k, (terms - 1,)
    thread = arithmetic.oracle_sum + (chain[-1] if terms > 1 else 0)
    longest = thread + 4 * merges

    # η a step and a merge for quotients that underflow
    mean_error = gamma_k(longest, u) * row_mean(abs(x)) + (terms + merges) * eta

    c2 = float(np.sum(chain**2 / k))
    f2 = sum((thread + 4 * level) ** 2 for level in range(merges))
    v = gamma_k(longest, u) / longest if longest else u
    mean_of_squares = row_mean(x * x)
    first_order = v * np.sqrt(variance * mean_of_squares) * sqrt((1 + sqrt(2)) ** 2 * c2 + 4 * f2)
    changes = first_order + v * v * mean_of_squares * (c2 + f2)
    roundings = gamma_k(2 * merges + max(terms + 2, 5) + 1 + arithmetic.oracle_sum, u)
    # η for every product that underflows: less than n a step and a level, and the division's
    return mean_error, changes + roundings * (variance + changes) + Extended(merges + 6) * eta
