"""Compute libdevice's special functions, which neither NumPy nor Python has: erfinv, erfcx, Bessel functions.

All are computed in float64: an inverse by Newton's method, Bessel functions of the first kind by series for the orders
0 and 1, else by quadrature, with an absolute error of about 1e-14, those of the second kind by series, with all digits
as long as x < n.
"""

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np

EULER = 0.5772156649015329
MIDDLE = 25.0  # from here on Hankel's expansion has all digits for the orders 0 and 1
FAR = 300.0  # from here on, and beyond n², it has them for the order n
ONE = 1 << 256  # 1 in fixed point
MOST = 1 << 20  # points of a quadrature: 8 MiB


def normcdfinv(p: float) -> float:
    """Return the x at which the normal distribution's cumulative probability is p."""
    if not 0 < p < 1:
        return -math.inf if p == 0 else math.inf if p == 1 else math.nan
    return NormalDist().inv_cdf(p)


def normcdf(x: float) -> float:
    """Return the normal distribution's cumulative probability at x."""
    root = -x / math.sqrt(2)
    if not 1 < root < 40:  # where the rounding of the root hardly matters, or nothing is left
        return 0.5 * math.erfc(root)
    return 0.5 * math.exp(-x * x / 2) * (1 - float(Fraction(x) ** 2 - Fraction(x * x)) / 2) * erfcx(root)


def erfinv(y: float) -> float:
    """Return the x of which y is the error function."""
    if not -1 < y < 1:
        return math.copysign(math.inf, y) if abs(y) == 1 else math.nan
    if abs(y) > 0.5:  # 1 − y has all digits there, and erf(x) has lost some
        return math.copysign(erfcinv(1 - abs(y)), y)
    x = y * math.sqrt(math.pi) / 2
    for _ in range(60):
        step = (math.erf(x) - y) * math.sqrt(math.pi) / 2 * math.exp(x * x)
        x -= step
        if abs(step) <= 1e-17 * abs(x):
            break
    return x


def erfcinv(y: float) -> float:
    """Return the x of which y is the complementary error function."""
    if not 0 < y < 2:
        return math.inf if y == 0 else -math.inf if y == 2 else math.nan
    if y > 1.5:
        return -erfcinv(2 - y)
    if y >= 0.5:  # then 1 − y is exact, and its inverse has all digits where this one nearly vanishes
        return erfinv(1 - y)
    x = -NormalDist().inv_cdf(y / 2) / math.sqrt(2) if y > 1e-300 else math.sqrt(-math.log(y))
    for _ in range(60):  # of the logarithm, which is nearly a parabola: erfc(x) itself may be too small for a float
        scaled = erfcx(x)
        step = (math.log(scaled) - x * x - math.log(y)) * -math.sqrt(math.pi) / 2 * scaled
        x -= step
        if abs(step) <= 1e-16 * abs(x):
            break
    return x


def erfcx(x: float) -> float:
    """Return exp(x²)·erfc(x)."""
    if x < 5:
        square = x * x
        if square > 709.7 and x < 0:
            return math.inf
        lost = float(Fraction(x) ** 2 - Fraction(square))  # by rounding: exp would make up to x² / 2 ulps of it
        return math.exp(square) * (1 + lost) * math.erfc(x)
    if math.isinf(x):
        return 0.0
    fraction = 0.0  # Laplace's continued fraction
    for k in range(60, 0, -1):
        fraction = k / 2 / (x + fraction)
    return 1 / math.sqrt(math.pi) / (x + fraction)


def _far_out(n: int, x: float) -> tuple[float, float]:
    """Return both Bessel functions of a large x, by Hankel's expansion."""
    terms = [1.0]
    for k in range(1, 24):
        terms.append(terms[-1] * (4 * n * n - (2 * k - 1) ** 2) / (8 * k * x))
    even = sum(term * (-1) ** k for k, term in enumerate(terms[::2]))
    odd = sum(term * (-1) ** k for k, term in enumerate(terms[1::2]))
    angle, size = x - (n / 2 + 0.25) * math.pi, math.sqrt(2 / (math.pi * x))
    sine, cosine = math.sin(angle), math.cos(angle)
    return size * (even * cosine - odd * sine), size * (even * sine + odd * cosine)


def jn(n: int, x: float) -> float:
    """Return the Bessel function of the first kind, by Bessel's integral.

    An H100 returns NaN for tiny x, such as below 2^-128 for n = 2 and below 2^-56 for n = 39. Here the result is right.
    """
    if n < 0 or math.isnan(x):  # CUDA's has no negative n
        return math.nan
    if x == 0 or math.isinf(x):
        return math.copysign(0.0, x) if n % 2 else float(n == x == 0)
    if n < 2 and abs(x) < MIDDLE:  # CUDA bounds the ulps there
        return _series(n, x)[0]
    if abs(x) > max(FAR, n * n):
        return _far_out(n, abs(x))[0] * (-1 if x < 0 and n % 2 else 1)
    # The integrand is smooth and periodic, so its mean over equidistant angles has all digits. Functions of orders from
    # 2·count - n on are added to it, which vanish because the order is so much larger than x.
    count = 64 + min(MOST, int(abs(x)) + n)
    angles = math.pi / count * (np.arange(count) + 0.5)
    return float(np.cos(n * angles - x * np.sin(angles)).mean())


def yn(n: int, x: float) -> float:
    """Return the Bessel function of the second kind, from those of orders 0 and 1."""
    if x < 0 or n < 0 or math.isnan(x):
        return math.nan
    if x == 0:
        return -math.inf
    if math.isinf(x):
        return 0.0
    if x > max(FAR, n * n):
        return _far_out(n, x)[1]
    before, value = 0.0, _first_y(0, x)
    for k in range(n):  # upwards, where the recurrence loses no digits
        before, value = value, 2 * k / x * value - before if k else _first_y(1, x)
        if math.isinf(value):
            break
    return value


def _first_y(n: int, x: float) -> float:
    """Return the Bessel function of the second kind and of order 0 or 1."""
    if x > MIDDLE:
        return _far_out(n, x)[1]
    first, second = _series(n, x)
    logarithm = (math.log(x) - math.log(2) + EULER) * first
    return (2 * logarithm - second - (2 / x if n else 0.0)) / math.pi


def _series(n: int, x: float) -> tuple[float, float]:
    """Return the power series of the Bessel function of order 0 or 1, and that of the second kind's rest.

    They are in fixed point with so many digits that large terms may cancel.
    """
    square, k, term = int(Fraction(x) ** 2 / 4 * ONE), 0, ONE
    harmonic = n * ONE  # H(k) + H(k + n), sums of reciprocals
    first = second = 0
    while term:
        first += term
        second += term * harmonic // ONE
        k += 1
        size = abs(term) * square // ONE // (k * (k + n))
        term = size if term < 0 else -size
        harmonic += ONE // k + ONE // (k + n)
    power = (x / 2) ** n
    return power * (first / ONE), power * (second / ONE)
