"""Call the device's functions for all lanes at once: math, casts, bits, minimum and maximum.

A function without a row here runs lane by lane.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from normlab.sim.language.arithmetic import BUILTINS, OPERATORS, to_complex, to_float, to_int
from normlab.sim.language.functions import CMATH, HALF, MATH, Namespace, TypedUfunc, brev, clz, ffs, fma, popc
from normlab.sim.language.half import BF16, FP16
from normlab.sim.language.integers import (
    BOOLS,
    INTEGER_CASTS,
    NARROW,
    TYPES,
    Boolean,
    IntegerCast,
    Unsigned64,
    as_boolean,
)
from normlab.sim.language.libdevice import LIBDEVICE
from normlab.sim.language.operators import OPERATOR_GLOBALS, PREFIX
from normlab.sim.language.variables import AS_INTEGER, CAST, CAST_GLOBALS, NAMES, holder_of
from normlab.sim.vectorised.arithmetic import binary, by_alternatives, extreme, lane_by_lane, trusted
from normlab.sim.vectorised.casts import to_integer, to_scalar_type
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import COMPLEX, HOLDERS, SIGNED, Mixed, Vector, kind_of, lanes_as_int64, varies

# Of one argument, NumPy's function under the name of math's or under its own.
ONE_ARGUMENT = {
    name: getattr(np, {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
                       "atanh": "arctanh"}.get(name, name))
    for name in (
        *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "floor", "trunc", "fabs", "cbrt"),
        *("isnan", "isinf", "isfinite"),
    )
}  # fmt: skip


def _of_one(name: str, function: np.ufunc) -> Callable:
    scalar = MATH[name]

    def compute(value: Any, width: int) -> Any:
        kind = value.kind
        # Numba computes a bfloat16, and a float16 of a function outside HALF, in float32, and integers in float64.
        if kind is ml_dtypes.bfloat16 or (kind is np.float16 and name not in HALF):
            value, kind = to_scalar_type(np.float32, value, width), np.float32
        elif kind not in (np.float16, np.float32, np.float64):
            value, kind = to_scalar_type(np.float64, value, width), np.float64
        if type(value) is not Vector or not trusted(function, kind):
            return lane_by_lane(scalar, (value,), width)
        data = function(value.data)
        # `isnan` and its like give bools, which add up as integers in a kernel.
        return _as_boolean(Vector(np.bool_, data), width) if data.dtype == np.bool_ else Vector(kind, data)

    return compute


def _of_libdevice(scalar: Callable, function: Callable, kind: type) -> Callable:
    """Return a function of one argument, which it casts to `kind` first."""

    def compute(value: Any, width: int) -> Any:
        # A function of C has one type, to which a number of any other is converted first.
        given = to_scalar_type(kind, value, width)
        if type(given) is not Vector or not trusted(function, kind, scalar):
            return lane_by_lane(scalar, (value,), width)
        return Vector(kind, function(given.data))

    return compute


def _to_float(value: Any, width: int) -> Any:
    holder = HOLDERS[value.kind].kind if type(value) is Vector else ""
    if holder == "f" and value.kind is not float:  # a NumPy float keeps its width, as in `to_float`
        return value
    return (
        to_scalar_type(np.float64, value, width) if holder in tuple("biu") else lane_by_lane(to_float, (value,), width)
    )


def _to_int(value: Any, width: int) -> Any:
    if type(value) is Vector and issubclass(value.kind, np.integer) and value.kind is not Boolean:
        return value
    return to_integer(INTEGER_CASTS["int64"], value, width)


def _abs(value: Any, width: int) -> Any:
    if type(value) is Vector and value.kind in (np.float32, np.float64):
        return Vector(value.kind, np.abs(value.data))
    # The magnitude of a single complex number is C's hypot, in NumPy and in Python.
    if type(value) is Vector and value.kind in COMPLEX and trusted(_magnitude, value.kind, abs):
        data = _magnitude(value.data)
        return Vector(data.dtype.type, data)
    if type(value) is Vector and value.kind is complex and trusted(_magnitude, np.complex128, _of_python):
        data = _magnitude(value.data)
        if np.isfinite(data).all():  # Python raises where it is too large
            return Vector(float, data)
    return lane_by_lane(abs, (value,), width)


def _of_python(number: Any) -> Any:
    return abs(complex(number))


def _magnitude(numbers: np.ndarray) -> np.ndarray:
    return np.hypot(numbers.real, numbers.imag)


def _complex(*given: Any) -> Any:
    """Return `complex(real, imaginary)` for all lanes, whose number comes last."""
    *parts, width = given
    kinds = [part.kind if type(part) is Vector else type(part) for part in parts]
    if len(parts) != 2 or any(kind not in (np.float32, np.float64) for kind in kinds):
        return lane_by_lane(to_complex, tuple(parts), width)
    kind = np.complex64 if kinds == [np.float32, np.float32] else np.complex128
    data = np.empty(width, kind)
    data.real, data.imag = (part.data if type(part) is Vector else part for part in parts)
    return Vector(kind, data)


def _ufunc(function: TypedUfunc, arguments: tuple, width: int) -> Any:
    """Return a function of NumPy's own."""
    compute = function.compute
    kinds = {kind_of(argument) for argument in arguments}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    # All other types are left to TypedUfunc, which knows their widths, and so are functions with two results.
    whole = kind in (np.float32, np.float64, *COMPLEX) and function.nout == 1
    if not whole or not trusted(compute, kind, count=len(arguments)):
        return lane_by_lane(function, arguments, width)
    # A scalar as an array, too: `trusted` knows arrays only, and NumPy has shortcuts for the power of one number.
    data = compute(*(one.data if type(one) is Vector else np.full(width, one) for one in arguments))
    return _as_boolean(Vector(data.dtype.type, data), width)


def _popc(value: Any, width: int) -> Any:
    if type(value) is not Vector or value.kind not in (*SIGNED, Unsigned64):
        return lane_by_lane(popc, (value,), width)
    # A narrow integer has its own number of bits, all others have 64.
    data = value.data.view(np.uint64)
    if value.kind in NARROW.values():
        data = data & np.uint64((1 << value.kind.bits) - 1)  # type: ignore[attr-defined]
    count = np.bitwise_count(data).astype(HOLDERS[value.kind])
    return Vector(np.int64 if value.kind is int else value.kind, count)


def _to_variable_type(name: str) -> Callable:
    """Return what gives all lanes the type that the compiler has told of a variable (language/variables.py)."""
    kind, holder = TYPES[name], holder_of(name)
    # `kind` is NumPy's bool, which would not add up as an integer.
    if holder is Boolean:
        return lambda value, width: _as_boolean(call(kind, (value,), width), width)
    return lambda value, width: value if value.kind is holder else call(kind, (value,), width)


def _as_boolean(value: Any, width: int) -> Any:
    """Return bools as the scheduler's `Boolean`, anything else as it is."""
    return Vector(Boolean, value.data.astype(np.int64)) if value.kind in BOOLS else value


# Functions of `cuda.libdevice` of one argument, in float64, and in float32 with an f, as C names them.
REAL = {name: function for name, function in ONE_ARGUMENT.items() if not name.startswith("is")}
# NumPy has none. `trusted` compares this one with LIBDEVICE's before the first use.
REAL["rsqrt"] = lambda x: 1 / np.sqrt(x)
OF_LIBDEVICE = {
    (name + suffix, kind): _of_libdevice(getattr(LIBDEVICE, name + suffix), function, kind)
    for name, function in REAL.items()
    for suffix, kind in (("", np.float64), ("f", np.float32))
}

# The scalar function, by identity → the function of all lanes, which takes the frame's width last.
VECTORISED: dict[int, Callable] = {
    **{id(MATH[name]): _of_one(name, function) for name, function in ONE_ARGUMENT.items()},
    **{id(getattr(LIBDEVICE, name)): function for (name, _), function in OF_LIBDEVICE.items()},
    id(BUILTINS["max"]): extreme(max),
    id(BUILTINS["min"]): extreme(min),
    id(to_float): _to_float,
    id(to_int): _to_int,
    id(popc): _popc,
    id(abs): _abs,
    id(to_complex): _complex,
    id(CAST_GLOBALS[AS_INTEGER]): lambda value, width: lanes_as_int64(value),
    id(as_boolean): _as_boolean,
    **{id(CAST_GLOBALS[CAST + name]): _to_variable_type(name) for name in NAMES},
    # A power of an integer is a chain of multiplications, and is called lane by lane (PURE).
    **{
        id(operation): (lambda a, b, width, operation=operation: binary(operation, a, b, width))
        for name, operation in OPERATORS.items()
        if name != "Pow"
    },
}


def _members(namespace: Namespace) -> list:
    # A namespace keeps its own name beside its members.
    return [value for name, value in vars(namespace).items() if name != "_name"]


# Functions that depend on their arguments alone, so that they may be called lane by lane.
PURE = {
    id(function): function
    for function in (
        *MATH.values(),
        *OPERATORS.values(),
        *(BUILTINS[name] for name in ("float", "int", "max", "min", "bool", "round", "pow", "divmod")),
        *_members(LIBDEVICE),
        *_members(FP16),
        *_members(BF16),
        *CMATH.values(),
        *(as_boolean, brev, clz, ffs, fma, popc, abs, to_complex, math.gcd, OPERATOR_GLOBALS[PREFIX + "bit_count"]),
        *CAST_GLOBALS.values(),
    )
}


def _single(arguments: tuple) -> Any:
    if len(arguments) != 1:
        raise NotVectorisedError("of a cast with several arguments")
    return arguments[0]


def call(function: Any, arguments: tuple, width: int) -> Any:
    """Return `function(*arguments)` for all lanes; at least one argument varies."""
    if any(type(one) is Mixed for one in arguments):
        return by_alternatives(partial(_of_one_type, function), arguments, width)
    made = VECTORISED.get(id(function))
    # `max` and `min` of three or more compare one after another, so that a NaN that comes first stays: lane by lane.
    if made is not None and (made not in EXTREMES or len(arguments) == 2):
        return made(*arguments, width)
    if isinstance(function, IntegerCast):
        return to_integer(function, _single(arguments), width)
    if isinstance(function, type) and issubclass(function, np.generic):
        return to_scalar_type(function, _single(arguments), width)
    if isinstance(function, TypedUfunc):
        return _ufunc(function, arguments, width)
    if id(function) in PURE:
        return lane_by_lane(function, arguments, width)
    # An unknown function might print, or ask for the running thread, which only the scheduler has.
    raise NotVectorisedError(f"of a call of {getattr(function, '__name__', function)!r}")


def _of_one_type(function: Any, *arguments: Any) -> Any:
    """Return `function` of lanes with one type each, whose number comes last."""
    *values, width = arguments
    return call(function, tuple(values), width) if any(map(varies, values)) else function(*values)


EXTREMES = (VECTORISED[id(BUILTINS["max"])], VECTORISED[id(BUILTINS["min"])])
