"""Build `cuda.libdevice` and `cuda.fp16`: tables from CUDA's names to functions of a given type.

A libdevice function takes and gives one type whatever it is called with: `expf` is float32, `exp` is float64. The
tables have the functions that round to nearest, and the conversions in all four directions. Any other name raises an
AttributeError that says that it is missing.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from normlab.sim.language.arithmetic import BUILTINS
from normlab.sim.language.functions import MATH, Namespace, brev, clz, ffs, popc
from normlab.sim.language.fused import fma64, narrow_fma
from normlab.sim.language.integers import INTEGER_CASTS, is_unsigned

Function = Callable[..., Any]

_int32, _int64 = INTEGER_CASTS["int32"], INTEGER_CASTS["int64"]


def typed(function: Function, takes: Any, gives: Any = None) -> Function:
    """Return `function` with its arguments cast to `takes` and its result (or each of a tuple) to `gives`."""
    result_type = takes if gives is None else gives

    def call(*values: Any) -> Any:
        result = function(*map(takes, values))
        return tuple(map(result_type, result)) if isinstance(result, tuple) else result_type(result)

    return call


def _half_away_from_zero(x: Any) -> Any:
    whole = np.trunc(x)
    return np.copysign(np.abs(whole) + 1, x) if np.abs(x - whole) >= 0.5 else whole


# Name without suffix → NumPy; the float32 function adds an f, as C does.
_REAL: dict[str, Function] = {
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
    # Modulo 2 first, so that a large argument keeps its fraction; then in float64, because π in float32 would cost
    # bits.
    "cospi": lambda x: np.cos(np.pi * np.float64(np.fmod(x, 2))),
    "sinpi": lambda x: np.sin(np.pi * np.float64(np.fmod(x, 2))),
    "normcdf": lambda x: 0.5 * MATH["erfc"](-np.float64(x) / np.sqrt(2)),
    "sincos": lambda x: (np.sin(x), np.cos(x)),
}
# On a GPU these are less exact than the functions without `fast_`. Here both are the same function.
_FAST = ("cosf", "exp10f", "expf", "log10f", "log2f", "logf", "powf", "sinf", "tanf", "sincosf")
_ARITHMETIC: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
}
_ROUNDINGS: dict[str, Function] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


def _libdevice() -> dict[str, Function]:
    """Build the table of `cuda.libdevice`."""
    table: dict[str, Function] = {}
    function: Function
    for name, function in _REAL.items():
        # Their second argument is an int32 and must not become a float.
        takes_int = name in ("ldexp", "powi")
        for suffix, kind in (("", np.float64), ("f", np.float32)):
            if takes_int:
                table[name + suffix] = lambda x, n, function=function, kind=kind: kind(function(kind(x), int(n)))
            else:
                table[name + suffix] = typed(function, kind)
    for name in _FAST:
        table[f"fast_{name}"] = table[name]
    for name, function in _ARITHMETIC.items():
        # Round to nearest is the only rounding that NumPy has; the rz, rd and ru versions are missing, and say so.
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
    table |= _conversions() | _integers()
    return table


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
            for direction, rounded in _ROUNDINGS.items():
                table[f"{real}2{short}_{direction}"] = _as_signed(typed(rounded, kind, INTEGER_CASTS[name]))
    table["double2float_rn"] = typed(np.float32, np.float64, np.float32)
    table["float_as_int"] = typed(lambda x: x.view(np.int32), np.float32, _int32)
    # Through NumPy's own int32, because the cast gives a 64-bit integer that only remembers its width.
    table["int_as_float"] = lambda x: np.int32(_int32(x)).view(np.float32)
    table["double_as_longlong"] = typed(lambda x: x.view(np.int64), np.float64, _int64)
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
    return table


LIBDEVICE = Namespace("cuda.libdevice", _libdevice())


def _fp16() -> dict[str, Function]:
    """Build the table of `cuda.fp16`: half in, half out; comparisons give a bool.

    CUDA's header has a function under a name with two underscores where numba-cuda adds one without; both work in a
    kernel (`rewrite.py` strips the underscores of an import by name).
    """
    half = np.float16
    table: dict[str, Function] = {f"h{name}": typed(function, half) for name, function in _ARITHMETIC.items()}
    for name in ("sin", "cos", "exp", "exp2", "log", "log2", "log10", "tanh"):
        table[f"h{name}"] = typed(MATH[name], half)
    table |= {f"h{name}": typed(_REAL[name], half) for name in ("exp10", "rsqrt", "ceil", "floor", "trunc", "rint")}
    table["habs"], table["hneg"] = typed(abs, half), typed(lambda x: -x, half)
    table["hmax"], table["hmin"] = typed(BUILTINS["max"], half), typed(BUILTINS["min"], half)
    # hmax ignores a NaN and these return it: np.maximum does, NumPy's fmax does not.
    table["hmax_nan"], table["hmin_nan"] = typed(np.maximum, half), typed(np.minimum, half)
    table["hfma"] = lambda x, y, z: narrow_fma(half, *map(half, (x, y, z)))
    for name in ("eq", "ge", "gt", "le", "lt"):
        table[f"h{name}"] = typed(getattr(operator, name), half, np.bool_)
    table["hne"] = typed(lambda x, y: x < y or x > y, half, np.bool_)  # ordered: false for a NaN, unlike x != y
    table["hisnan"], table["hisinf"] = typed(np.isnan, half, np.bool_), typed(np.isinf, half, np.bool_)
    for name in ("hadd", "hsub", "hmul"):
        table[f"{name}_rn"] = table[name]
    table["half2float"] = typed(np.float32, half, np.float32)
    table["float2half"] = table["float2half_rn"] = typed(half, np.float32, half)
    table["double2half"] = typed(half, np.float64, half)
    return table | {f"__{name}": function for name, function in table.items()}


FP16 = Namespace("cuda.fp16", _fp16())
