"""Build `cuda.fp16` and `cuda.bf16`: the functions of CUDA's headers cuda_fp16.h and cuda_bf16.h.

They take and give one type of 16 bits; comparisons give a bool. The header has a function under a name with two
underscores where numba-cuda adds one without; both work in a kernel (`rewrite.py` finds what is imported by name).
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from normlab.sim.language.arithmetic import BUILTINS
from normlab.sim.language.directed import DOWN, UP, ZERO, from_integer, narrowed
from normlab.sim.language.functions import MATH, Namespace
from normlab.sim.language.fused import narrow_fma
from normlab.sim.language.integers import INTEGER_CASTS, Boolean, IntegerCast
from normlab.sim.language.libdevice import ARITHMETIC, REAL, ROUNDINGS, typed

Function = Callable[..., Any]

INTEGERS = {"short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32", "ll": "int64", "ull": "uint64"}


def nearest_bfloat16(value: Any) -> Any:
    """Return the bfloat16 nearest to an int or a float64; ml_dtypes would round twice, through float32."""
    single = np.float32(value)
    # Rounded to odd, the float32 keeps enough for the second rounding to be the only one that counts (`narrow_fma`).
    if np.isfinite(single) and float(single) != value and not single.view(np.int32) & 1:
        single = np.nextafter(single, np.float32(math.inf if value > float(single) else -math.inf))
    return ml_dtypes.bfloat16(single)


def _functions(kind: Any, wide: Any, nearest: Function, name: str) -> dict[str, Function]:
    """Build the table of one type, which computes in `wide`; `nearest` rounds wider values, `name` is C's."""

    def computed(function: Function) -> Function:
        # Rounded twice, to `wide` and to `kind`. For +, -, ×, / and the root the result is as if rounded once, because
        # float32 has 24 binary digits, at least two more than twice bfloat16's 8 and float16's 11 (NumPy computes
        # float16 in float32).
        return lambda *values: kind(function(*(wide(kind(value)) for value in values)))

    table = {f"h{name}": computed(function) for name, function in ARITHMETIC.items()}
    for each in ("sin", "cos", "exp", "exp2", "log", "log2", "log10", "tanh"):
        table[f"h{each}"] = computed(MATH[each])
    table |= {f"h{each}": computed(REAL[each]) for each in ("exp10", "rsqrt", "ceil", "floor", "trunc", "rint")}
    table["htanh_approx"] = table["htanh"]
    table["habs"], table["hneg"] = computed(abs), computed(lambda x: -x)
    table["hmax"], table["hmin"] = computed(BUILTINS["max"]), computed(BUILTINS["min"])
    # hmax ignores a NaN and these return it.
    for each in ("hmax", "hmin"):
        # `f=` binds the present function; a name alone would be looked up at the call, after the loop.
        table[f"{each}_nan"] = computed(lambda x, y, f=table[each]: f(x, y) if x == x and y == y else math.nan)
    fma = table["hfma"] = lambda x, y, z: narrow_fma(nearest, *map(kind, (x, y, z)))
    for each in ("hadd", "hsub", "hmul"):
        table[f"{each}_rn"] = table[each]
    for each in ("hadd", "hsub", "hmul", "hfma"):
        table[f"{each}_sat"] = lambda *values, function=table[each]: _saturated(function(*values))
    table["hfma_relu"] = lambda x, y, z: _not_negative(fma(x, y, z))
    for each in ("eq", "ge", "gt", "le", "lt"):
        compare = getattr(operator, each)
        table[f"h{each}"] = typed(compare, kind, Boolean)
        # unordered: true if one is NaN
        table[f"h{each}u"] = typed(lambda x, y, compare=compare: compare(x, y) or x != x or y != y, kind, Boolean)
    table["hne"] = typed(lambda x, y: x < y or x > y, kind, Boolean)  # ordered: false for a NaN, unlike x != y
    table["hneu"] = typed(operator.ne, kind, Boolean)
    table["hisnan"] = typed(np.isnan, kind, Boolean)
    table["hisinf"] = typed(lambda x: np.isinf(x) and np.sign(x), kind, INTEGER_CASTS["int32"])
    table |= _conversions(kind, nearest, name)
    # C's own names, which numba-cuda's cuda.fp16 has beside the short ones.
    return table | {f"__{each}": function for each, function in table.items()}


def _saturated(x: Any) -> Any:
    """Return x between 0 and 1; NaN becomes 0."""
    return type(x)(min(max(x, 0), 1) if x == x else 0)


def _not_negative(x: Any) -> Any:
    return type(x)(0) if x < 0 else x


def _conversions(kind: Any, nearest: Function, name: str) -> dict[str, Function]:
    """Build the rows half2int_rz, int2half_rn, float2half, half_as_short, …"""
    table: dict[str, Function] = {f"{name}2float": typed(np.float32, kind, np.float32)}
    table[f"double2{name}"] = lambda x: nearest(np.float64(x))
    table[f"float2{name}"] = table[f"float2{name}_rn"] = lambda x: kind(np.float32(x))
    for direction in (UP, DOWN, ZERO):
        table[f"float2{name}_{direction}"] = narrowed(np.float32, kind, direction)
    for short, each in INTEGERS.items():
        cast = INTEGER_CASTS[each]
        # Through Python's int: an np.int64 would be compared with the float32 in float64, which may not hold it.
        table[f"{short}2{name}_rn"] = lambda x, cast=cast: nearest(int(cast(x)))
        for direction in (UP, DOWN, ZERO):
            table[f"{short}2{name}_{direction}"] = from_integer(cast, kind, direction)
        for direction, function in ROUNDINGS.items():
            table[f"{name}2{short}_{direction}"] = _to_integer(kind, function, cast)
    for short, each in (("char", "int8"), ("uchar", "uint8")):
        table[f"{name}2{short}_rz"] = _to_integer(kind, np.trunc, INTEGER_CASTS[each])
    for short, each in (("short", "int16"), ("ushort", "uint16")):
        cast = INTEGER_CASTS[each]
        # The bits stay; the cast makes a 64-bit integer of the same 16 bits, as the device's register does.
        table[f"{name}_as_{short}"] = lambda x, cast=cast: cast(kind(x).view(np.int16))
        table[f"{short}_as_{name}"] = lambda x: np.int16(INTEGER_CASTS["int16"](x)).view(kind)
    return table


def _to_integer(kind: Any, function: Function, cast: IntegerCast) -> Function:
    """Return a conversion that saturates in the integer's own width, where a cast of fewer than 32 bits wraps."""
    limits = np.iinfo(cast.dtype)

    def convert(x: Any) -> Any:
        whole = function(np.float32(kind(x)))
        if cast.bits > 16:
            return cast(whole)
        # A cast goes through a register of 32 bits and then wraps, so a value out of range is cut before.
        return cast(0 if np.isnan(whole) else min(max(whole, limits.min), limits.max))

    return convert


FP16 = Namespace("cuda.fp16", _functions(np.float16, np.float16, np.float16, "half"))
BF16 = Namespace("cuda.bf16", _functions(ml_dtypes.bfloat16, np.float32, nearest_bfloat16, "bfloat16"))
