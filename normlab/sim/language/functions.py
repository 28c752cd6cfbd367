"""Provide the scalar functions that a kernel calls: `math`, `cuda.fma` and the bit functions, `cuda.fp16`,
`cuda.libdevice`.

Each is NumPy's function in the device's type: a float32 goes in and comes out, and what `math` answers with an
exception (sqrt(-1), log(0), exp(1000)) is nan or inf.
"""

import math
import operator
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import ml_dtypes
import numpy as np

from normlab.sim.language.arithmetic import power, to_complex
from normlab.sim.language.fused import fma64, narrow_fma
from normlab.sim.language.integers import (
    BOOLS,
    INTEGER_CASTS,
    Boolean,
    NarrowInteger,
    Unsigned64,
    adopt_scalar,
)

# --- math ------------------------------------------------------------------------------------------------------------


def widened(value: Any) -> Any:
    """Return a float as it is (bfloat16 as float32: NumPy computes with no other), anything else as float64."""
    if isinstance(value, np.floating):
        return value
    return np.float32(value) if isinstance(value, ml_dtypes.bfloat16) else np.float64(value)


# cuda.fp16 has these in half precision. Numba computes all others of a float16 in float32, and returns float32.
HALF = ("sin", "cos", "ceil", "floor", "sqrt", "log", "log2", "log10", "exp", "exp2", "fabs", "trunc")


def _single(value: Any) -> Any:
    """Return a float as `widened` does, a float16 as float32: most functions have no half precision version."""
    value = widened(value)
    return np.float32(value) if type(value) is np.float16 else value


def _float_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    accepted = widened if name in HALF else _single

    def compute(*values: Any) -> Any:
        return function(*map(accepted, values))

    return compute


def _through_math(function: Callable[[float], float], pole: float = math.nan) -> Callable[[Any], Any]:
    """Give a function that NumPy does not have the type of its argument, and `pole` at a negative pole of it."""

    def compute(value: Any) -> Any:
        value = _single(value)
        try:
            # Through float64 and then rounded: within the error bound of libdevice's own function, but not its last
            # bit.
            return type(value)(function(float(value)))
        except ValueError:
            # At a negative integer the gamma function has no limit, and at 0 and -0 that of 1 / x. lgamma is infinite
            # at all of them.
            return type(value)(pole if value < 0 else 1 / value if value == 0 and math.isnan(pole) else math.inf)
        except OverflowError:
            return type(value)(math.copysign(math.inf, value))

    return compute


_erf, _erfc = _through_math(math.erf), _through_math(math.erfc)
_gamma, _lgamma = _through_math(math.gamma), _through_math(math.lgamma, pole=math.inf)
_int64 = INTEGER_CASTS["int64"]


def _power(a: Any, b: Any) -> Any:
    # `math.pow` is no operator: an integer exponent becomes float64 there instead of a chain of multiplications.
    if isinstance(b, (int, np.integer)):
        return np.float64(a) ** np.float64(b)
    return power(_single(a), _single(b))


_NUMPY_NAMES = {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan"}
_NUMPY_NAMES |= {"atan2": "arctan2", "atanh": "arctanh", "remainder": "remainder", "fabs": "fabs"}

# The names of `math`, of float libdevice functions without their suffix, and of fp16 functions without their h.
MATH: dict[str, Callable[..., Any]] = {
    name: _float_function(name, getattr(np, _NUMPY_NAMES.get(name, name)))
    for name in (
        *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "floor", "trunc", "fabs", "fmod"),
        *("hypot", "copysign", "nextafter", "isnan", "isinf", "isfinite", "cbrt", "modf"),
    )
}
MATH |= {"erf": _erf, "erfc": _erfc, "gamma": _gamma, "lgamma": _lgamma, "pow": _power}
MATH |= {
    "degrees": lambda x: _scaled(_single(x), 180 / math.pi),
    "radians": lambda x: _scaled(_single(x), math.pi / 180),
    "frexp": lambda x: _frexp(_single(x)),
    "ldexp": lambda x, exponent: np.ldexp(_single(x), int(exponent)),
    "remainder": lambda x, y: _remainder(_single(x), _single(y)),
    "gcd": math.gcd,
}


def _scaled(x: Any, factor: float) -> Any:
    return x * type(x)(factor)


def _frexp(x: Any) -> tuple[Any, Any]:
    mantissa, exponent = np.frexp(x)
    return mantissa, INTEGER_CASTS["int32"](exponent)


def _remainder(x: Any, y: Any) -> Any:
    """Return the IEEE remainder: exact, of the nearest multiple."""
    kind = np.result_type(x, y).type
    # math.remainder raises here, and the device answers NaN.
    if not np.isfinite(x) or np.isnan(y) or y == 0:
        return kind(math.nan)
    return kind(math.remainder(float(x), float(y)))


def _predicate(function: Callable[[Any], Any]) -> Callable[[Any], Boolean]:
    return lambda value: Boolean(function(value))


MATH |= {name: _predicate(MATH[name]) for name in ("isnan", "isinf", "isfinite")}


# --- cmath -----------------------------------------------------------------------------------------------------------

_COMPLEX_NAMES = {name: name for name in ("cos", "cosh", "log10", "sin", "sinh", "sqrt", "tan", "tanh")}
_COMPLEX_NAMES |= {f"a{name}": f"arc{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")}


def _complex(value: Any) -> Any:
    """Return a number as the complex one that Numba makes of it; one of Python takes the width of what it meets."""
    if isinstance(value, (complex, np.complex64)):
        return value
    small = isinstance(value, (np.float32, np.float16, *BOOLS)) or getattr(value, "bits", 64) < 32
    return np.complex64(value) if small else np.complex128(value)


def _typed(value: Any) -> Any:
    return np.complex128(value) if type(value) is complex else value


def _complex_function(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*values: Any) -> Any:
        given = [_complex(value) for value in values]
        result = function(*map(_typed, given))
        return complex(result) if any(type(value) is complex for value in given) else result

    return compute


def _exponential(z: Any) -> Any:
    if not np.isfinite(z):
        return np.exp(z)
    size = np.exp(z.real)  # where it overflows, a part that is 0 becomes NaN, as in Numba's formula
    return type(z)(complex(size * np.cos(z.imag), size * np.sin(z.imag)))


def _phase(z: Any) -> Any:
    return np.arctan2(z.imag, z.real)


def _log(z: Any, base: Any = None) -> Any:
    return np.log(z) if base is None else np.log(z) / np.log(base)


def _rect(r: Any, phi: Any) -> Any:
    """Return the complex number of a length and an angle; of length 0 it is 0, and infinity makes no part of 0 NaN."""
    if not np.isfinite(phi) and (r == 0 or np.isinf(r)):
        return to_complex(r, phi) if r else to_complex(abs(r))
    return to_complex(*(part / r if part == 0 and np.isinf(r) else part * r for part in (np.cos(phi), np.sin(phi))))


# NumPy's functions have the width of their argument and never raise, where Python's cmath.log(0) does.
CMATH: dict[str, Any] = {
    name: _complex_function(getattr(np, numpy_name)) for name, numpy_name in _COMPLEX_NAMES.items()
}
CMATH |= {name: _predicate(getattr(np, name)) for name in ("isnan", "isinf", "isfinite")}
CMATH |= {
    "exp": _complex_function(_exponential),
    "log": _complex_function(_log),
    "phase": _phase,
    "polar": lambda z: (np.hypot(z.real, z.imag), _phase(z)),
    "rect": lambda r, phi: _rect(_single(r), _single(phi)),
}


# --- NumPy's own functions -------------------------------------------------------------------------------------------


def _of_floats(ufunc: np.ufunc, formula: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `formula` for floats and the ufunc for all other numbers."""
    return lambda a, b: (formula if np.result_type(a, b).kind == "f" else ufunc)(a, b)


def _remainder_of_division(a: Any, b: Any) -> Any:
    rest = np.fmod(a, b)
    return rest + np.where((rest != 0) & ((b < 0) != (rest < 0)), b, rest.dtype.type(0))


# Ufuncs for which Numba has a formula of its own.
FORMULAS: dict[np.ufunc, Callable[..., Any]] = {
    np.floor_divide: _of_floats(np.floor_divide, lambda a, b: np.floor(a / b)),
    np.remainder: _of_floats(np.remainder, _remainder_of_division),
    np.power: operator.pow,  # the ufunc takes the root of a single number to the power of 0.5, also of -inf
    np.sign: lambda a: np.where(a == 0, a, np.sign(a)),
    # Of 0.0 and -0.0 the first, as of any two that are equal; NumPy takes the first or the second.
    np.maximum: lambda a, b: np.where((a >= b) | (a != a), a, b),
    np.minimum: lambda a, b: np.where((a <= b) | (a != a), a, b),
    np.fmax: lambda a, b: np.where((a >= b) | (b != b), a, b),
    np.fmin: lambda a, b: np.where((a <= b) | (b != b), a, b),
}


class TypedUfunc:
    """A ufunc of NumPy that a kernel names: it takes and gives integers and bools in their own width, as Numba's do."""

    def __init__(self, ufunc: np.ufunc):
        """Stand for `ufunc`; `compute` is its function of scalars, and of arrays of all lanes."""
        self.ufunc, self.compute = ufunc, FORMULAS.get(ufunc, ufunc)

    def __call__(self, *values: Any, **options: Any) -> Any:
        """Return the ufunc of scalars as the device's value; an integer that meets a float takes the float's type."""
        if options or not all(isinstance(value, (int, float, complex, np.generic)) for value in values):
            return self.ufunc(*values, **options)  # of arrays
        given = [_of_numpy(value) for value in values]
        inexact = [value.dtype for value in given if value.dtype.kind in "fc"]
        if inexact:
            kind = np.result_type(*inexact).type
            given = [kind(value) if value.dtype.kind in "iu" else value for value in given]
        result = self.compute(*given)
        if not inexact and getattr(result, "dtype", None) == np.float16:  # NumPy's of 8 bits; Numba has no such ufunc
            result = self.ufunc(*map(np.float32, given))
        return tuple(map(adopt_scalar, result)) if isinstance(result, tuple) else adopt_scalar(result[()])

    def __getattr__(self, name: str) -> Any:
        """Return the ufunc's own attribute."""
        return getattr(self.ufunc, name)


def _of_numpy(value: Any) -> Any:
    """Return a scalar of a kernel as NumPy's scalar of the same type."""
    if isinstance(value, BOOLS):
        return np.bool_(value)
    if isinstance(value, NarrowInteger):
        return np.dtype(type(value).__name__).type(value)
    if isinstance(value, Unsigned64):
        return np.uint64(value)
    return value if isinstance(value, np.generic) else np.asarray(value)[()]


# --- fused multiply-add ----------------------------------------------------------------------------------------------


def fma(a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c rounded once: in float32 if all three are float32, else in float64."""
    # An int64 or a Python float among them makes all three float64, by Numba's rules of unification.
    if type(a) is type(b) is type(c) is np.float32:
        return narrow_fma(np.float32, a, b, c)
    return fma64(a, b, c)


# --- bits ------------------------------------------------------------------------------------------------------------


def _register(value: Any) -> tuple[int, int]:
    """Return the bits of an integer, and how many it has."""
    width = value.bits if isinstance(value, NarrowInteger) else 64
    # A negative int becomes the bits of its two's complement: popc(-1) is 64, or the width of a narrow integer.
    return int(value) & (1 << width) - 1, width


def _like(value: Any, count: int) -> Any:
    """Return `count` in the type of `value`."""
    return type(value)(count) if isinstance(value, np.integer) else _int64(count)


def popc(value: Any) -> Any:
    """Return the number of set bits, in the type of `value`."""
    return _like(value, _register(value)[0].bit_count())


def clz(value: Any) -> Any:
    """Return the number of leading zero bits, in the type of `value`."""
    bits, width = _register(value)
    return _like(value, width - bits.bit_length())


def ffs(value: Any) -> Any:
    """Return the position of the lowest set bit, counted from 1, as a uint32; 0 if there is none."""
    bits, _ = _register(value)
    return INTEGER_CASTS["uint32"]((bits & -bits).bit_length())


def brev(value: Any) -> Any:
    """Return the bits in reverse order, as an unsigned integer: 64 of a uint64, else 32."""
    # Numba has two versions, brev.b32 and brev.b64, and takes the wide one for a uint64 alone.
    width = 64 if isinstance(value, np.uint64) else 32
    bits = int(value) & (1 << width) - 1
    return INTEGER_CASTS[f"uint{width}"](int(f"{bits:0{width}b}"[::-1], 2))


# --- namespaces ------------------------------------------------------------------------------------------------------


class Namespace:
    """A part of `cuda`: a table of functions, and an error that names what is missing."""

    def __init__(self, name: str, members: dict[str, Any]):
        """Hold `members` under their names; `name` is what an error calls the namespace."""
        self._name = name
        # Plain attributes, found without a call: `__getattr__` below runs only for names that are missing.
        self.__dict__.update(members)

    def __getattr__(self, attribute: str) -> Any:
        """Say what is missing, and which name comes nearest."""
        nearest = get_close_matches(attribute, vars(self), n=1)
        hint = f"; did you mean {self._name}.{nearest[0]}?" if nearest else ""
        raise AttributeError(f"normlab's simulator has no {self._name}.{attribute}{hint}")
