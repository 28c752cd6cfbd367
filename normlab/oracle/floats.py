"""Floating-point formats as numbers: what one rounding may cost. Called by every other file of the oracle.

Source: IEEE 754-2019; Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. 2002, chapters 2 and 3.
"""

from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Extended = np.longdouble  # 64 bits of significand on x86, 113 on Linux/ARM; just float64 on Windows and Apple silicon
ExtendedArray = NDArray[np.longdouble]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """A binary format: `precision` bits of significand (the hidden one counts), exponents `smallest` to `biggest`."""

    precision: int
    smallest: int
    biggest: int

    @property
    def unit_roundoff(self) -> float:
        """u: rounding to nearest changes a normal number by at most u times its size."""
        return 2.0**-self.precision

    @property
    def half_subnormal(self) -> Extended:
        """What rounding may cost where u times the size is less: half the smallest subnormal number."""
        return Extended(2) ** (self.smallest - self.precision)

    @property
    def largest(self) -> Extended:
        """The largest finite number."""
        return (2 - Extended(2) ** (1 - self.precision)) * Extended(2) ** self.biggest


FORMATS = {
    "bfloat16": Format(8, -126, 127),
    "float16": Format(11, -14, 15),
    "float32": Format(24, -126, 127),
    "float64": Format(53, -1022, 1023),
}

EXTENDED_ROUNDOFF = float(np.finfo(Extended).eps) / 2


def float_format(dtype: DTypeLike) -> Format:
    """The format of a dtype or of its name.

    >>> float(float_format("float16").largest), float_format(np.float32).precision
    (65504.0, 24)
    """
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in FORMATS:
        raise ValueError(f"no floating-point format {name!r}: known are {', '.join(FORMATS)}")
    return FORMATS[name]


def unit_roundoff(dtype: DTypeLike) -> float:
    """u of a dtype or of its name: half the distance from 1 to the next number.

    >>> unit_roundoff("bfloat16") == 2**-8, unit_roundoff(np.float32) == 2**-24
    (True, True)
    """
    return float_format(dtype).unit_roundoff


def gamma_k(roundings: float, u: Extended) -> Extended:
    """Higham's γ_k = k u / (1 - k u): the relative change that k roundings in a row can make (lemma 3.1).

    Infinite where k u reaches 1: after so many roundings nothing is known.

    >>> float(gamma_k(2, Extended(0.25))), float(gamma_k(4, Extended(0.25)))
    (1.0, inf)
    """
    if roundings * u >= 1:
        return Extended(np.inf)
    return roundings * u / (1 - roundings * u)


def extended(values: Any, name: str = "array") -> ExtendedArray:
    """Any real array as float64, widened: the oracle sees the float64 value of whatever comes in.

    Torch's CPU tensors come in, too, without importing torch. TypeError for what is not real.
    """
    if hasattr(values, "detach"):
        values = values.detach()  # NumPy takes no tensor that requires a gradient, and none of bfloat16
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    array = np.asarray(values)
    if not np.can_cast(array.dtype, np.float64, "same_kind"):
        raise TypeError(f"{name} has dtype {array.dtype}, but real numbers are needed")
    return array.astype(np.float64).astype(Extended)


def real(eps: Any) -> float:
    """Eps as a float, infinite where it is too large for one. TypeError for what is no real number."""
    if not isinstance(eps, Real):
        raise TypeError(f"eps must be a real number, got {eps!r}")
    try:
        return float(eps)
    except OverflowError:
        return inf if eps > 0 else -inf  # type: ignore[operator]  # numbers.Real declares no order
