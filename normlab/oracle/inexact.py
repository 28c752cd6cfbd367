"""Running error analysis: arithmetic on pairs (exact value, bound on what the kernel holds instead).

The bounds write the kernel's formula once, with these numbers, and every operator adds what its rounding may cost. Products of
errors are kept, so a bound holds when it is large, too. Source: Wilkinson's running error analysis, Higham 2002, section 3.3.

Errors have three kinds. Finite: a bound. Infinite: nothing is known, the kernel may have overflowed or may have taken
the root of a number whose sign rounding decides. NaN: the exact value is NaN, and so is the kernel's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import Extended, ExtendedArray, Format, gamma_k


@dataclass(frozen=True, eq=False)
class Inexact:
    """Numbers that a kernel holds in its accumulator format: |held - exact| <= error, elementwise."""

    exact: ExtendedArray
    error: ExtendedArray
    arithmetic: Arithmetic

    def __add__(self, other: "Inexact") -> "Inexact":
        # One rounding; a sum of subnormal numbers is exact.
        return self._rounded(self.exact + other.exact, self.error + other.error, underflow=False)

    def __sub__(self, other: "Inexact") -> "Inexact":
        return self._rounded(self.exact - other.exact, self.error + other.error, underflow=False)

    def __mul__(self, other: "Inexact") -> "Inexact":
        # |a b - â b̂| <= |a| e_b + |b| e_a + e_a e_b
        error = abs(self.exact) * other.error + abs(other.exact) * self.error + self.error * other.error
        return self._rounded(self.exact * other.exact, unless_special(error, self.error + other.error))

    def scaled(self, factor: Extended | ExtendedArray) -> "Inexact":
        """Times an exact factor, in the mathematics only: the roundings of it are the caller's to add."""
        return Inexact(self.exact * factor, unless_special(self.error * abs(factor), self.error), self.arithmetic)

    def divided_exactly(self, divisor: ArrayLike) -> "Inexact":
        """Divided by numbers that the kernel holds without error. Nothing is known where one of them is 0."""
        error = np.where(np.equal(divisor, 0), np.inf, self.error / np.abs(divisor))
        return self._rounded(self.exact / divisor, unless_special(error, self.error))

    def rounded_again(self, times: int) -> "Inexact":
        """The same numbers after `times` more roundings that change nothing else, such as times n, then divided by n."""
        roundings = gamma_k(times, self.arithmetic.u) * (abs(self.exact) + self.error)
        underflow = times * self.arithmetic.u_format.half_subnormal
        return self._checked(self.exact, self.error + unless_special(roundings + underflow, self.error))

    def sum(self, axis: int, roundings: float) -> "Inexact":
        """Added up along an axis, each term going through `roundings` additions: γ_k Σ|â_i| on top of Σ e_i."""
        passed_on = self.error.sum(axis=axis, keepdims=True)
        added = gamma_k(roundings, self.arithmetic.u) * (abs(self.exact) + self.error).sum(axis=axis, keepdims=True)
        return self._checked(self.exact.sum(axis=axis, keepdims=True), unless_special(passed_on + added, passed_on))

    def instead_of(self, exact: ExtendedArray) -> "Inexact":
        """The same held numbers, measured against another exact value: a bias of the method becomes part of the error."""
        return self._checked(exact, unless_special(self.error + abs(self.exact - exact), self.error))

    def stored(self, storage: Format) -> ExtendedArray:
        """The error after the one rounding to a storage format."""
        rounding = storage.unit_roundoff * (abs(self.exact) + self.error) + storage.half_subnormal
        return unless_special(self.error + rounding, self.error)

    def _rounded(self, exact: ExtendedArray, error: ExtendedArray, *, underflow: bool = True) -> "Inexact":
        rounding = self.arithmetic.u * (abs(exact) + error)
        if underflow:
            rounding = rounding + self.arithmetic.u_format.half_subnormal
        return self._checked(exact, unless_special(error + rounding, error))

    def _checked(self, exact: ExtendedArray, error: ExtendedArray) -> "Inexact":
        overflows = abs(exact) + error > self.arithmetic.u_format.largest
        return Inexact(exact, np.where(overflows, Extended(np.inf), error), self.arithmetic)


def held_exactly(values: ExtendedArray, arithmetic: Arithmetic) -> Inexact:
    """What the kernel loads: no error."""
    return Inexact(values, np.zeros_like(values), arithmetic)


def sum_of_three(a: Inexact, b: Inexact, c: Inexact) -> Inexact:
    """a + b + c in whatever order a compiler or a programmer takes."""
    exact, error = a.exact + b.exact + c.exact, a.error + b.error + c.error
    first = np.maximum(np.maximum(abs(a.exact + b.exact), abs(b.exact + c.exact)), abs(a.exact + c.exact))
    halfway = Inexact(exact, unless_special(error + a.arithmetic.u * (first + error), error), a.arithmetic)
    return halfway._rounded(exact, halfway.error, underflow=False)


def unless_special(error: ExtendedArray, before: ExtendedArray) -> ExtendedArray:
    """`error` where the errors it was made from were finite, else those: infinity times 0 must not become a NaN."""
    return np.where(np.isfinite(before), error, before)
