"""Round a result up, down or towards zero, as libdevice's functions ending in _ru, _rd and _rz do.

NumPy rounds to nearest alone. Here the exact result is computed as a fraction, and the number beside it on the right
side is returned.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

UP, DOWN, ZERO = "ru", "rd", "rz"
largest_of = cache(lambda kind: ml_dtypes.finfo(kind).max)


def rounded(exact: Fraction, kind: Any, direction: str) -> Any:
    """Return the number of type `kind` next to `exact`, which is not 0, in a direction; `exact` itself if it is one."""
    # A denominator is positive, so the sign is the numerator's.
    top, bottom = exact.numerator, exact.denominator

    def beyond_exact(number: Any) -> int:
        """Return a number with the sign of `number` - `exact`, by integers: fractions take ten times as long."""
        above, below = float(number).as_integer_ratio()
        return above * bottom - top * below

    largest, sign = largest_of(kind), 1 if top > 0 else -1
    upwards = direction == UP or (direction == ZERO and top < 0)
    # Beyond the largest number: infinity in the direction of rounding, and the largest number against it.
    if sign * beyond_exact(sign * largest) < 0:
        beyond = kind(np.inf) if upwards == (top > 0) else largest
        return kind(sign * beyond)
    near = kind(float(exact))  # finite: rounding to nearest keeps order, and `exact` is at most the largest number
    # `near` may lie on the wrong side of `exact`, or not be the side's first number: step to the right side, and then
    # back as far as that side reaches.
    towards = kind(np.inf if upwards else -np.inf)
    side = 1 if upwards else -1
    while side * beyond_exact(near) < 0:
        near = np.nextafter(near, towards)
    before = np.nextafter(near, -towards)
    while np.isfinite(before) and side * beyond_exact(before) >= 0:
        near, before = before, np.nextafter(before, -towards)
    # A tiny negative number rounded up is −0, and `near` may have come to 0 from the other side.
    return kind(math.copysign(0, sign)) if near == 0 else near


def directed(function: Callable[..., Any], exactly: Callable[..., Fraction], kind: Any, direction: str) -> Any:
    """Return an operation of numbers of type `kind` that rounds in a direction.

    function: NumPy's operation, for infinities, NaNs and results of 0. exactly: the same of fractions.
    """

    def call(*values: Any) -> Any:
        given = [kind(value) for value in values]
        with np.errstate(all="ignore"):
            nearest = kind(function(*given))
        if not all(map(np.isfinite, given)):
            # Of finite x and y the product may overflow on its way to an infinite or NaN z, which decides alone.
            finite = function is _multiply_add and np.isfinite(given[0]) and np.isfinite(given[1])
            return given[2] if finite else nearest
        try:
            exact = exactly(*(Fraction(float(value)) for value in given))
        except (ZeroDivisionError, ValueError):  # x / 0, and the root of a negative number
            return nearest
        if exact:
            return rounded(exact, kind, direction)
        if direction == DOWN and function in TERMS:
            # A sum of 0 is −0 when rounding down, unless both of its terms are +0.
            terms = TERMS[function](*given)
            return kind(0.0 if all(term == 0 and not np.signbit(term) for term in terms) else -0.0)
        return nearest

    return call


def _add(x: Any, y: Any) -> Any:
    return x + y


def _subtract(x: Any, y: Any) -> Any:
    return x - y


def _multiply_add(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


# The two terms of each sum.
TERMS: dict[Callable[..., Any], Callable[..., tuple]] = {
    _add: lambda x, y: (x, y),
    _subtract: lambda x, y: (x, -y),
    _multiply_add: lambda x, y, z: (x * y, z),
}


def _root(x: Fraction, digits: int = 160) -> Fraction:
    """Return the square root of x, exactly if it is rational, else cut off after `digits` binary digits and a bit more.

    The bit more makes it lie strictly between two numbers, as the root does.
    """
    if x < 0:
        raise ValueError
    # Even, so that the root of 2**shift is a power of two as well.
    shift = 2 * max(0, digits - (x.numerator.bit_length() - x.denominator.bit_length()) // 2)
    whole = (x.numerator << shift) // x.denominator
    found = math.isqrt(whole)
    root = Fraction(found, 1 << shift // 2)
    return root if root * root == x else root + Fraction(1, 1 << shift // 2 + 1)


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Fraction]]] = {
    "add": (_add, _add),
    "sub": (_subtract, _subtract),
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "div": (lambda x, y: x / y, lambda x, y: x / y),
    "rcp": (lambda x: 1 / x, lambda x: 1 / x),
    "sqrt": (np.sqrt, _root),
    "fma": (_multiply_add, _multiply_add),
}


def directed_functions() -> dict[str, Callable[..., Any]]:
    """Return libdevice's fadd_ru, dmul_rz, fma_rd, …: each operation in both types and all three directions."""
    table = {}
    for name, (function, exactly) in OPERATIONS.items():
        for letter, kind in (("f", np.float32), ("d", np.float64)):
            if letter + name == "dsub":
                continue  # libdevice has none
            full = {"ffma": "fmaf", "dfma": "fma"}.get(letter + name, letter + name)
            for direction in (UP, DOWN, ZERO):
                table[f"{full}_{direction}"] = directed(function, exactly, kind, direction)
    return table


def from_integer(cast: Any, kind: Any, direction: str) -> Callable[[Any], Any]:
    """Return the conversion of an integer of type `cast` to a float of type `kind`, rounded in a direction."""

    def call(value: Any) -> Any:
        whole = int(cast(value))
        return rounded(Fraction(whole), kind, direction) if whole else kind(0)

    return call


def narrowed(takes: Any, kind: Any, direction: str) -> Callable[[Any], Any]:
    """Return the conversion of a float of type `takes` to the narrower `kind`, rounded in a direction."""

    def call(value: Any) -> Any:
        given = takes(value)
        if given == 0 or not np.isfinite(given):
            return kind(given)
        return rounded(Fraction(float(given)), kind, direction)

    return call
