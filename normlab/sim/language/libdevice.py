"""Build `cuda.libdevice`: a table from CUDA's names to functions of a given type.

A libdevice function takes and gives one type whatever it is called with: `expf` is float32, `exp` is float64. The
table has all of libdevice's functions; those that round in a direction are in `directed.py`, and erfinv, the Bessel
functions and their like in `special.py`.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from normlab.sim.language import special
from normlab.sim.language.arithmetic import BUILTINS
from normlab.sim.language.directed import DOWN, UP, ZERO, directed_functions, from_integer, narrowed
from normlab.sim.language.functions import MATH, Namespace, brev, clz, ffs, popc
from normlab.sim.language.fused import fma64, narrow_fma
from normlab.sim.language.integers import INTEGER_CASTS, is_unsigned

Function = Callable[..., Any]

_int16, _int32, _int64 = INTEGER_CASTS["int16"], INTEGER_CASTS["int32"], INTEGER_CASTS["int64"]


def typed(function: Function, takes: Any, gives: Any = None) -> Function:
    """Return `function` with its arguments cast to `takes` and its result (or each of a tuple) to `gives`."""
    result_type = takes if gives is None else gives

    def call(*values: Any) -> Any:
        result = function(*map(takes, values))
        return tuple(map(result_type, result)) if isinstance(result, tuple) else result_type(result)

    return call


def _half_away_from_zero(x: Any) -> Any:
    # C's `round`: np.round takes halves to the even neighbour, and floor(x + 0.5) makes 1 of the number just below 0.5.
    whole = np.trunc(x)
    return np.copysign(np.abs(whole) + 1, x) if np.abs(x - whole) >= 0.5 else whole


def _half_turns(x: Any) -> Any:
    """Return the angle between 0 and 1, in half turns, whose cosine is that of x, in float64."""
    # The cosine is even, and its period is two half turns. fmod is exact, however large x is.
    rest = np.abs(np.float64(np.fmod(x, 2)))
    return 2 - rest if rest > 1 else rest


def _sine_of_half_turns(x: Any) -> Any:
    """Return sin(πx) for x between −1/2 and 1: exactly 0 at 0 and 1. π in float32 would cost bits."""
    return np.sin(np.pi * (1 - x if x > 0.5 else x))


# Name without suffix → NumPy; the float32 function adds an f, as C does.
REAL: dict[str, Function] = {
    **{name: MATH[name] for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign")},
    **{name: MATH[name] for name in ("cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "fabs", "fmod", "hypot")},
    **{name: MATH[name] for name in ("lgamma", "log", "log10", "log1p", "log2", "nextafter", "pow", "remainder")},
    **{name: MATH[name] for name in ("sin", "sinh", "sqrt", "tan", "tanh", "ldexp", "modf")},
    "tgamma": MATH["gamma"],
    "powi": MATH["pow"],
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "rint": np.rint,
    "nearbyint": np.rint,
    "round": _half_away_from_zero,
    "fmax": BUILTINS["max"],
    "fmin": BUILTINS["min"],
    # A NaN on either side comes out as a NaN: the subtraction makes it.
    "fdim": lambda x, y: x - y if x > y or x != x or y != y else 0,
    "exp10": lambda x: np.power(type(x)(10), x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cospi": lambda x: _sine_of_half_turns(0.5 - _half_turns(x)),
    # Past one half turn the sine has the other sign. `copysign` keeps it also for a result of 0.
    "sinpi": lambda x: (
        _sine_of_half_turns(_half_turns(x)) * (np.copysign(1, x) if abs(np.fmod(x, 2)) <= 1 else -np.copysign(1, x))
    ),
    "sincos": lambda x: (np.sin(x), np.cos(x)),
}
# On a GPU these are less exact than the functions without `fast_`. Here both are the same function.
_FAST = ("cosf", "exp10f", "expf", "log10f", "log2f", "logf", "powf", "sinf", "tanf", "sincosf")
ARITHMETIC: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
}
ROUNDINGS: dict[str, Function] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


def _libdevice() -> dict[str, Function]:
    """Build the table of `cuda.libdevice`."""
    table: dict[str, Function] = {}
    function: Function
    for name, function in REAL.items():
        # Their second argument is an int32 and must not become a float.
        takes_int = name in ("ldexp", "powi")
        for suffix, kind in (("", np.float64), ("f", np.float32)):
            # `function=`, `kind=` bind the present values; plain names would be looked up at the call, after the loop.
            if takes_int:
                table[name + suffix] = lambda x, n, function=function, kind=kind: kind(function(kind(x), int(n)))
            else:
                table[name + suffix] = typed(function, kind)
    for name in _FAST:
        table[f"fast_{name}"] = table[name]
    for name, function in ARITHMETIC.items():
        table[f"f{name}_rn"] = typed(function, np.float32)
        if name != "sub":  # libdevice has no dsub
            table[f"d{name}_rn"] = typed(function, np.float64)
    # In float64 and then to float32: two float32 operations would round twice.
    table["frsqrt_rn"] = typed(lambda x: 1 / np.sqrt(np.float64(x)), np.float32)
    # CUDA allows it 2 ulp for divisors between 2**-126 and 2**126; a correctly rounded quotient is within that.
    table["fast_fdividef"] = table["fdiv_rn"]
    table["saturatef"] = typed(
        lambda x: BUILTINS["max"](np.float32(0), BUILTINS["min"](x, np.float32(1))) if x == x else 0, np.float32
    )
    table["fma"] = table["fma_rn"] = fma64
    table["fmaf"] = table["fmaf_rn"] = lambda x, y, z: narrow_fma(np.float32, *map(np.float32, (x, y, z)))
    table |= _conversions() | _integers() | _parts_of_floats() | _special_functions() | directed_functions()
    return table


def _special_functions() -> dict[str, Function]:
    """Build the rows of `special.py`, in both types."""
    table: dict[str, Function] = {}
    bessel = {"j0": partial(special.jn, 0), "j1": partial(special.jn, 1)}
    bessel |= {"y0": partial(special.yn, 0), "y1": partial(special.yn, 1)}
    others = {name: getattr(special, name) for name in ("erfinv", "erfcinv", "erfcx", "normcdf", "normcdfinv")}
    for suffix, kind in (("", np.float64), ("f", np.float32)):
        for name, function in (bessel | others).items():
            table[name + suffix] = lambda x, function=function, kind=kind: kind(function(float(kind(x))))
        table[f"jn{suffix}"] = lambda n, x, kind=kind: _jn(int(n), kind(x))
        table[f"yn{suffix}"] = lambda n, x, kind=kind: _yn(int(n), kind(x))
    return table


def _jn(n: int, x: Any) -> Any:
    """Return the Bessel function of the first kind. CUDA's recurrence multiplies by 2 / x, which must not overflow."""
    with np.errstate(over="ignore", divide="ignore"):
        overflows = n > 1 and np.isinf(type(x)(2) / x)
    return type(x)(math.nan if overflows else special.jn(n, float(x)))


def _yn(n: int, x: Any) -> Any:
    """Return the Bessel function of the second kind. CUDA's recurrence in double precision divides by -0.0, too."""
    if isinstance(x, np.float64) and n > 1 and x == 0 and np.signbit(x):
        return np.float64(math.inf)
    return type(x)(special.yn(n, float(x)))


def _parts_of_floats() -> dict[str, Function]:
    """Build the rows that take floats apart or put them together; what C returns by a pointer is in a tuple."""
    table: dict[str, Function] = {}
    for suffix, kind in (("", np.float64), ("f", np.float32)):
        table[f"frexp{suffix}"] = lambda x, kind=kind: MATH["frexp"](kind(x))
        table[f"remquo{suffix}"] = lambda x, y, kind=kind: _remainder_and_quotient(kind(x), kind(y))
        table[f"scalbn{suffix}"] = lambda x, n, kind=kind: np.ldexp(kind(x), int(n))
        table[f"ilogb{suffix}"] = lambda x, kind=kind: _int32(_exponent(kind(x)))
        table[f"logb{suffix}"] = lambda x, kind=kind: _exponent_as_float(kind(x))
        table[f"sincospi{suffix}"] = typed(lambda x: (REAL["sinpi"](x), REAL["cospi"](x)), kind)
    # Through Python's int, whose shift and mask see 64 bits; the cast then wraps to 32.
    table["double2hiint"] = lambda x: _int32(int(np.float64(x).view(np.int64)) >> 32)
    table["double2loint"] = lambda x: _int32(int(np.float64(x).view(np.int64)) & 0xFFFFFFFF)
    table["hiloint2double"] = lambda high, low: np.uint64((int(high) & 0xFFFFFFFF) << 32 | int(low) & 0xFFFFFFFF).view(
        np.float64
    )
    return table


def _exponent(x: Any) -> int:
    """Return the exponent of x as ilogb does: the smallest int32 for 0 and NaN, the largest for infinity."""
    if x == 0 or np.isnan(x):
        return -(2**31)
    # NumPy's mantissa is at least 1/2 and below 1, C's at least 1 and below 2.
    return 2**31 - 1 if np.isinf(x) else int(np.frexp(x)[1]) - 1


def _exponent_as_float(x: Any) -> Any:
    kind = type(x)
    if x == 0 or not np.isfinite(x):
        return kind(-np.inf) if x == 0 else abs(x)
    return kind(_exponent(x))


def _remainder_and_quotient(x: Any, y: Any) -> tuple[Any, Any]:
    """Return the IEEE remainder, and the sign and the last three bits of the quotient."""
    remainder = MATH["remainder"](x, y)
    if not np.isfinite(remainder) or np.isinf(y):
        return remainder, _int32(0)
    # The remainder is exact, so this is a whole number. C promises its last three bits, of up to 2,098.
    quotient = (Fraction(float(x)) - Fraction(float(remainder))) / Fraction(float(y))
    bits = abs(int(quotient)) & 7
    return remainder, _int32(-bits if quotient < 0 else bits)


def _as_signed(function: Function) -> Function:
    """Give an unsigned result the signed type that Numba declares for it."""

    def call(value: Any) -> Any:
        result = function(value)
        # The bits stay: 0xFFFFFFFF of float2uint_rz is -1 in the int32 that Numba declares.
        return (_int64 if isinstance(result, np.uint64) else _int32)(result) if is_unsigned(result) else result

    return call


def _conversions() -> dict[str, Function]:
    """Build the rows float2int_rz, int2float_rn, float_as_int, isnanf, …"""
    table: dict[str, Function] = {}
    integers = {"int": "int32", "uint": "uint32", "ll": "int64", "ull": "uint64"}
    for real, kind in (("float", np.float32), ("double", np.float64)):
        for short, name in integers.items():
            table[f"{short}2{real}_rn"] = typed(kind, INTEGER_CASTS[name], kind)
            for direction, rounded in ROUNDINGS.items():
                table[f"{real}2{short}_{direction}"] = _as_signed(typed(rounded, kind, INTEGER_CASTS[name]))
    for direction in (UP, DOWN, ZERO):
        for short, name in integers.items():
            if short in ("ll", "ull"):  # every int32 is a float64, so there is nothing to round
                table[f"{short}2double_{direction}"] = from_integer(INTEGER_CASTS[name], np.float64, direction)
            table[f"{short}2float_{direction}"] = from_integer(INTEGER_CASTS[name], np.float32, direction)
        table[f"double2float_{direction}"] = narrowed(np.float64, np.float32, direction)
    table["double2float_rn"] = typed(np.float32, np.float64, np.float32)
    table["float_as_int"] = typed(lambda x: x.view(np.int32), np.float32, _int32)
    # Through NumPy's own int32, because the cast gives a 64-bit integer that only remembers its width.
    table["int_as_float"] = lambda x: np.int32(_int32(x)).view(np.float32)
    table["double_as_longlong"] = typed(lambda x: x.view(np.int64), np.float64, _int64)
    # A GPU has one NaN of 16 bits, 0x7FFF; NumPy would keep the sign and the payload of the float32's.
    table["float2half_rn"] = lambda x: _int16(0x7FFF if x != x else int(np.float16(np.float32(x)).view(np.int16)))
    table["half2float"] = lambda bits: np.float32(np.int16(_int16(bits)).view(np.float16))
    table["longlong_as_double"] = lambda x: np.int64(_int64(x)).view(np.float64)
    for name, test in (("isnan", np.isnan), ("isinf", np.isinf), ("signbit", np.signbit)):
        table[f"{name}f"] = typed(test, np.float32, _int32)
        table[f"{name}d"] = typed(test, np.float64, _int32)
    table["finitef"] = typed(np.isfinite, np.float32, _int32)
    table["isfinited"] = typed(np.isfinite, np.float64, _int32)
    for suffix, kind in (("", np.float64), ("f", np.float32)):
        table[f"llrint{suffix}"] = typed(np.rint, kind, _int64)
        table[f"llround{suffix}"] = typed(_half_away_from_zero, kind, _int64)
    return table


def _integers() -> dict[str, Function]:
    """Build the rows of integer functions, 32 bits and (ll) 64 bits."""
    function: Function
    table: dict[str, Function] = {}
    for suffix, prefix, signed, unsigned in (("", "", "int32", "uint32"), ("ll", "ll", "int64", "uint64")):
        kind = INTEGER_CASTS[signed]
        for name, function in (("clz", clz), ("ffs", ffs), ("popc", popc)):
            table[name + suffix] = typed(function, kind, _int32)
        table["brev" + suffix] = typed(brev, INTEGER_CASTS[unsigned], kind)
        table[f"{prefix}abs"] = typed(abs, kind)
        for name, function in (("max", max), ("min", min)):
            table[prefix + name] = typed(function, kind)
            table[f"u{prefix}{name}"] = typed(function, INTEGER_CASTS[unsigned], kind)
        wide, bits = "64" if prefix else "", 64 if prefix else 32
        for letter, name in (("", signed), ("u", unsigned)):
            # The high half of the product, of which Python's ints have all bits.
            table[f"{letter}mul{wide}hi"] = _of_ints(lambda x, y, bits=bits: x * y >> bits, INTEGER_CASTS[name], kind)
    for letter, cast in (("", _int32), ("u", INTEGER_CASTS["uint32"])):
        table[f"{letter}mul24"] = _of_ints(
            lambda x, y, letter=letter: _low_24(x, letter == "u") * _low_24(y, letter == "u"), cast, _int32
        )
        # The sum needs 33 bits before it is halved.
        table[f"{letter}hadd"] = _of_ints(lambda x, y: x + y >> 1, cast, _int32)
        table[f"{letter}rhadd"] = _of_ints(lambda x, y: x + y + 1 >> 1, cast, _int32)
        table[f"{letter}sad"] = _of_ints(lambda x, y, z: abs(x - y) + z, cast, _int32)
    table["byte_perm"] = _of_ints(_byte_perm, INTEGER_CASTS["uint32"], _int32)
    return table


def _of_ints(function: Function, takes: Any, gives: Any) -> Function:
    """Return a function of Python's integers, which do not wrap, on arguments wrapped to `takes`."""
    return lambda *values: gives(function(*(int(takes(value)) for value in values)))


def _low_24(x: int, unsigned: bool) -> int:
    """Return the low 24 bits of x as a number, signed unless `unsigned`."""
    low = x & 0xFFFFFF
    # Bit 23 is the sign of a number of 24 bits.
    return low if unsigned or low < 1 << 23 else low - (1 << 24)


def _byte_perm(x: int, y: int, selector: int) -> int:
    """Return four of the eight bytes of x and y, chosen by the four lowest hexadecimal digits of `selector`."""
    # y above x: the bytes of x are numbers 0 to 3, those of y 4 to 7. A digit's highest bit is not used.
    both = x | y << 32
    return sum((both >> 8 * (selector >> 4 * place & 7) & 0xFF) << 8 * place for place in range(4))


LIBDEVICE = Namespace("cuda.libdevice", _libdevice())
