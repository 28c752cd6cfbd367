"""Describe floating-point formats by numbers, and the error of one rounding. Every other file of the oracle uses this.

Source: IEEE 754-2019; Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. 2002, chapters 2 and 3.
"""

from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Extended = np.longdouble  # 64 bits of significand on x86, 113 on Linux/ARM; only float64 on Windows and Apple silicon
ExtendedArray = NDArray[np.longdouble]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """A binary format: `precision` bits of significand, with the hidden bit, and exponents `smallest` to `biggest`."""

    precision: int
    smallest: int
    biggest: int

    @property
    def unit_roundoff(self) -> float:
        """Return u: rounding to nearest changes a normal number by at most u times its size."""
        return 2.0**-self.precision

    @property
    def half_subnormal(self) -> Extended:
        """Return half the smallest subnormal number: the largest rounding error of a number near 0."""
        return Extended(2) ** (self.smallest - self.precision)

    @property
    def largest(self) -> Extended:
        """Return the largest finite number."""
        return (2 - Extended(2) ** (1 - self.precision)) * Extended(2) ** self.biggest


FORMATS = {
    "bfloat16": Format(8, -126, 127),
    "float16": Format(11, -14, 15),
    "float32": Format(24, -126, 127),
    "float64": Format(53, -1022, 1023),
}

EXTENDED_ROUNDOFF = float(np.finfo(Extended).eps) / 2


def float_format(dtype: DTypeLike) -> Format:
    """Return the format of a dtype or of a dtype's name. Raise ValueError for a dtype that is not in FORMATS.

    >>> float(float_format("float16").largest), float_format(np.float32).precision
    (65504.0, 24)
    """
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in FORMATS:
        raise ValueError(f"no floating-point format {name!r}: known are {', '.join(FORMATS)}")
    return FORMATS[name]


def unit_roundoff(dtype: DTypeLike) -> float:
    """Return u of a dtype or of a dtype's name: half the distance from 1 to the next number.

    >>> unit_roundoff("bfloat16") == 2**-8, unit_roundoff(np.float32) == 2**-24
    (True, True)
    """
    return float_format(dtype).unit_roundoff


def gamma_k(roundings: float, u: Extended) -> Extended:
    """Return Higham's γ_k = k u / (1 - k u): the largest relative change by k roundings in sequence (lemma 3.1).

    Infinite if k u reaches 1: after that many roundings nothing is known.

    >>> float(gamma_k(2, Extended(0.25))), float(gamma_k(4, Extended(0.25)))
    (1.0, inf)
    """
    if roundings * u >= 1:
        return Extended(np.inf)
    return roundings * u / (1 - roundings * u)


def extended(values: Any, name: str = "array") -> ExtendedArray:
    """Return a real array, or a torch CPU tensor, converted to float64 and then widened to extended precision.

    torch is not imported for that. Raise TypeError for a dtype that is not real.
    """
    if hasattr(values, "detach"):
        values = values.detach()  # NumPy converts no tensor that requires a gradient, and no bfloat16 tensor
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    array = np.asarray(values)
    if not np.can_cast(array.dtype, np.float64, "same_kind"):
        raise TypeError(f"{name} has dtype {array.dtype}, but real numbers are needed")
    return array.astype(np.float64).astype(Extended)


def real(eps: Any) -> float:
    """Return eps as a float, infinite if it is too large for a float. Raise TypeError unless it is a real number."""
    if not isinstance(eps, Real):
        raise TypeError(f"eps must be a real number, got {eps!r}")
    try:
        return float(eps)
    except OverflowError:
        return inf if eps > 0 else -inf  # type: ignore[operator]  # numbers.Real declares no order
