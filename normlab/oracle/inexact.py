"""Running error analysis: compute with pairs (exact value, bound on the error of the kernel's value).

The forward and backward bounds write the kernel's formula once, with these numbers, and every operator adds the
largest error of its rounding. Products of errors are kept, so that a large bound holds, too. Source: Wilkinson's
running error analysis, Higham 2002, section 3.3.

An error is of one of three kinds. A finite error is a bound. An infinite error means that nothing is known, because the
kernel may have overflowed, or took the root of a number whose sign depends on rounding. A NaN means that the exact
value is NaN or infinite, and the kernel's value is the same.
"""

from dataclasses import dataclass
from typing import Any

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
        """Add, with one rounding; a sum of subnormal numbers is exact."""
        exact, error = self.exact + other.exact, self.error + other.error
        rounding = self.arithmetic.u * (abs(exact) + error)
        return self._held(exact, together(self, other), error + rounding)

    def __neg__(self) -> "Inexact":
        """Negate, without an error."""
        return Inexact(-self.exact, self.error, self.arithmetic)

    def __sub__(self, other: "Inexact") -> "Inexact":
        """Subtract, with the error of a sum."""
        return self + -other

    def __mul__(self, other: "Inexact") -> "Inexact":
        """Multiply: |a b - â b̂| <= |a| e_b + |b| e_a + e_a e_b, and one rounding."""
        exact = self.exact * other.exact
        error = abs(self.exact) * other.error + (abs(other.exact) + other.error) * self.error
        return self._held(exact, together(self, other), error, rounded=1)

    def divided_exactly(self, divisor: ExtendedArray) -> "Inexact":
        """Divide by numbers that the kernel holds without error. The result is unknown where the divisor is 0."""
        error = np.where(divisor == 0, Extended(np.inf), self.error / abs(divisor))
        # In two steps: the first makes x / 0 unknown before its rounding is NaN.
        return self._held(self.exact / divisor, self.error, error).rounded_again(1)

    def scaled(self, factor: Extended) -> "Inexact":
        """Multiply by an exact positive factor without a rounding; the caller adds the kernel's roundings."""
        return Inexact(self.exact * factor, self.error * factor, self.arithmetic)

    def rounded_again(self, times: int, held_by: Extended | int = 1) -> "Inexact":
        """Add the error of `times` further multiplications or divisions by exact numbers.

        `held_by`: the kernel may hold these numbers divided by `held_by`, so that they underflow sooner.
        """
        return self._held(self.exact, self.error, self.error, times, held_by)

    def sum(self, axis: int, roundings: float) -> "Inexact":
        """Add up along an axis. Each term goes through `roundings` additions: Σ e_i + γ_k Σ (|a_i| + e_i)."""
        exact, passed_on = self.exact.sum(axis=axis, keepdims=True), self.error.sum(axis=axis, keepdims=True)
        magnitudes = np.where(np.isnan(self.error), Extended(0), abs(self.exact) + self.error)
        magnitude = magnitudes.sum(axis=axis, keepdims=True)
        added = gamma_k(roundings, self.arithmetic.u) * magnitude
        # A partial sum may overflow although the whole sum does not. If a term is infinite, the sum may then be NaN.
        may_overflow = magnitude + added > self.arithmetic.u_format.largest
        whole = self._held(exact, passed_on, passed_on + added)
        return Inexact(exact, np.where(may_overflow, Extended(np.inf), whole.error), self.arithmetic)

    def less_exact(self, error: ExtendedArray) -> "Inexact":
        """Add an error from elsewhere. NaN counts as infinite: that of 0 times infinity."""
        further = np.where(np.isnan(error), Extended(np.inf), error)
        return Inexact(self.exact, unless_special(self.error + further, self.error), self.arithmetic)

    def instead_of(self, exact: ExtendedArray) -> "Inexact":
        """Measure the held numbers against another exact value, so that a method's bias becomes part of the error."""
        return self._held(exact, self.error, self.error + abs(self.exact - exact))

    def stored(self, storage: Format) -> ExtendedArray:
        """Return the error after the one rounding to a storage format."""
        rounding = storage.unit_roundoff * (abs(self.exact) + self.error) + storage.half_subnormal
        return unless_special(self.error + rounding, self.error)

    def _held(
        self,
        exact: ExtendedArray,
        operands: ExtendedArray,
        error: ExtendedArray,
        rounded: int = 0,
        held_by: Extended | int = 1,
    ) -> "Inexact":
        """Return a result; its error is infinite if it may overflow, and special where `operands` is special.

        `operands`: the operands' errors `together`. `rounded`: by so many multiplications or divisions, as in
        `rounded_again`.
        """
        size = abs(exact)
        if rounded:
            underflow = rounded * held_by * self.arithmetic.u_format.half_subnormal
            error = error + (gamma_k(rounded, self.arithmetic.u) * (size + error) + underflow)
        overflows = size + error > self.arithmetic.u_format.largest
        error = np.where(overflows, Extended(np.inf), error)
        return Inexact(exact, unless_special(error, operands), self.arithmetic)


def held_exactly(values: ExtendedArray, arithmetic: Arithmetic) -> Inexact:
    """Return values that the kernel loads exactly: without an error, and with the same NaNs and infinities."""
    return Inexact(values, np.where(np.isfinite(values), Extended(0), Extended(np.nan)), arithmetic)


def sum_of_three(a: Inexact, b: Inexact, c: Inexact) -> Inexact:
    """Return a + b + c with an error that covers every order of the two additions."""
    exact, error = a.exact + b.exact + c.exact, a.error + b.error + c.error
    first = np.maximum(np.maximum(abs(a.exact + b.exact), abs(b.exact + c.exact)), abs(a.exact + c.exact)) + error
    # The second addition's operand already carries the rounding of the first addition.
    after_first = error + a.arithmetic.u * first
    return a._held(exact, together(a, b, c), after_first + a.arithmetic.u * (abs(exact) + after_first))


def where(condition: np.ndarray, a: Inexact, b: Inexact) -> Inexact:
    """Return the numbers of `a` where `condition`, broadcast, is True, else the numbers of `b`."""
    return Inexact(np.where(condition, a.exact, b.exact), np.where(condition, a.error, b.error), a.arithmetic)


def together(*operands: Inexact) -> ExtendedArray:
    """Return the sum of the errors. An infinity and an unknown number make an unknown number; NaN stays NaN."""
    error: Any = sum(one.error for one in operands)
    infinity_and_unknown = np.isnan(error)
    for one in operands:
        infinity_and_unknown &= ~(np.isnan(one.error) & np.isnan(one.exact))
    infinity_and_unknown &= sum(np.isinf(one.error) for one in operands) > 0
    return np.where(infinity_and_unknown, Extended(np.inf), error)


def unless_special(error: ExtendedArray, operands: ExtendedArray) -> ExtendedArray:
    """Return `error`, except where `operands` is not finite: there `operands`, so that infinity times 0 is no NaN."""
    return np.where(np.isfinite(operands), error, operands)
