"""Running error analysis: arithmetic on pairs (exact value, bound on how far off the kernel's is).

The bounds write the kernel's formula once, with these numbers, and every operator adds what its rounding may cost.
Products of errors are kept, so that a bound holds when it is large, too. Called by the forward and backward bounds.
Source: Wilkinson's running error analysis, Higham 2002, section 3.3.

An error is of one of three kinds. Finite: a bound. Infinite: nothing is known, because the kernel may have overflowed,
or took the root of a number whose sign rounding decides. NaN: the exact value is NaN or infinite, and so is
the kernel's.
"""

from dataclasses import dataclass

import numpy as np

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.floats import Extended, ExtendedArray, Format, gamma_k


@dataclass(frozen=True, eq=False)
class Inexact:
    """Numbers that a kernel holds in its accumulator's format: |held - exact| <= error, elementwise."""

    exact: ExtendedArray
    error: ExtendedArray
    arithmetic: Arithmetic

    def __add__(self, other: "Inexact") -> "Inexact":
        """One rounding; a sum of subnormal numbers is exact."""
        exact, error = self.exact + other.exact, self.error + other.error
        rounding = self.arithmetic.u * (abs(exact) + error)
        return self._held(exact, error, error + rounding)

    def __neg__(self) -> "Inexact":
        """Free."""
        return Inexact(-self.exact, self.error, self.arithmetic)

    def __sub__(self, other: "Inexact") -> "Inexact":
        """As a sum."""
        return self + -other

    def __mul__(self, other: "Inexact") -> "Inexact":
        """|a b - â b̂| <= |a| e_b + |b| e_a + e_a e_b, and one rounding."""
        exact = self.exact * other.exact
        error = abs(self.exact) * other.error + abs(other.exact) * self.error + self.error * other.error
        return self._held(exact, self.error + other.error, error).rounded_again(1)

    def divided_exactly(self, divisor: ExtendedArray) -> "Inexact":
        """Divided by numbers that the kernel holds without error. Nothing is known where one of them is 0."""
        error = np.where(divisor == 0, Extended(np.inf), self.error / abs(divisor))
        return self._held(self.exact / divisor, self.error, error).rounded_again(1)

    def scaled(self, factor: Extended) -> "Inexact":
        """Times an exact positive factor, in the mathematics only: its roundings are the caller's to add."""
        return Inexact(self.exact * factor, self.error * factor, self.arithmetic)

    def rounded_again(self, times: int, held_by: Extended | int = 1) -> "Inexact":
        """The same numbers after `times` multiplications or divisions more, which are exact but for their rounding.

        `held_by`: the kernel may hold these numbers divided by that, so that they underflow the sooner.
        """
        rounding = gamma_k(times, self.arithmetic.u) * (abs(self.exact) + self.error)
        underflow = times * held_by * self.arithmetic.u_format.half_subnormal
        return self._held(self.exact, self.error, self.error + rounding + underflow)

    def sum(self, axis: int, roundings: float) -> "Inexact":
        """Added up along an axis, each term going through `roundings` additions: Σ e_i + γ_k Σ (|a_i| + e_i)."""
        passed_on = self.error.sum(axis=axis, keepdims=True)
        magnitude = (abs(self.exact) + self.error).sum(axis=axis, keepdims=True)
        exact = self.exact.sum(axis=axis, keepdims=True)
        added = gamma_k(roundings, self.arithmetic.u) * magnitude
        # A partial sum may overflow though the whole one does not.
        added = np.where(magnitude + added > self.arithmetic.u_format.largest, Extended(np.inf), added)
        return self._held(exact, passed_on, passed_on + added)

    def instead_of(self, exact: ExtendedArray) -> "Inexact":
        """The same held numbers, measured against another exact value: a method's bias becomes part of the error."""
        return self._held(exact, self.error, self.error + abs(self.exact - exact))

    def stored(self, storage: Format) -> ExtendedArray:
        """The error after the one rounding to a storage format."""
        rounding = storage.unit_roundoff * (abs(self.exact) + self.error) + storage.half_subnormal
        return unless_special(self.error + rounding, self.error)

    def _held(self, exact: ExtendedArray, operands: ExtendedArray, error: ExtendedArray) -> "Inexact":
        """A result, whose error is special where `operands`, the sum of the operands' errors, is, or overflow."""
        error = unless_special(error, operands)
        overflows = abs(exact) + error > self.arithmetic.u_format.largest
        return Inexact(exact, np.where(overflows, Extended(np.inf), error), self.arithmetic)


def held_exactly(values: ExtendedArray, arithmetic: Arithmetic) -> Inexact:
    """What the kernel loads: no error, and the same NaNs and infinities."""
    return Inexact(values, np.where(np.isfinite(values), Extended(0), Extended(np.nan)), arithmetic)


def sum_of_three(a: Inexact, b: Inexact, c: Inexact) -> Inexact:
    """a + b + c, in whatever order a programmer or a compiler takes: whichever two come first round by their sum."""
    exact, error = a.exact + b.exact + c.exact, a.error + b.error + c.error
    first = np.maximum(np.maximum(abs(a.exact + b.exact), abs(b.exact + c.exact)), abs(a.exact + c.exact)) + error
    # The second addition rounds what the first one left.
    after_first = error + a.arithmetic.u * first
    return a._held(exact, error, after_first + a.arithmetic.u * (abs(exact) + after_first))


def where(condition: np.ndarray, a: Inexact, b: Inexact) -> Inexact:
    """The numbers of `a` where `condition` holds, which is broadcast, else those of `b`."""
    return Inexact(np.where(condition, a.exact, b.exact), np.where(condition, a.error, b.error), a.arithmetic)


def unless_special(error: ExtendedArray, operands: ExtendedArray) -> ExtendedArray:
    """`error` where the operands' errors were finite, else those: infinity times 0 must not become a NaN."""
    return np.where(np.isfinite(operands), error, operands)
