"""The device's arithmetic on NumPy scalars: types, casts, and operators that never raise.

Numba computes every integer in 64 bits and narrows only in a cast or a store. A narrow integer is therefore an
`np.int64` here that remembers its width (for `popc`, `clz` and the like); any arithmetic turns it into a plain
`np.int64`. Division by zero and shifts go through the functions at the end: `rewrite.py` puts them in the place of
the operators.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np


class NarrowInteger(np.int64):
    """A 64-bit integer that came out of one of `bits` bits."""

    bits: int


NARROW: dict[np.dtype, type[NarrowInteger]] = {
    np.dtype(name): type(name, (NarrowInteger,), {"bits": np.dtype(name).itemsize * 8})
    for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")
}


class IntegerCast:
    """What `int32`, `uint8`, `np.int64`, … mean in a kernel: a cast that wraps, and a dtype for arrays."""

    def __init__(self, name: str):
        """Be the type that NumPy calls `name`."""
        self.dtype = np.dtype(name)
        self.bits = self.dtype.itemsize * 8
        self.signed = self.dtype.kind == "i"
        self.holder: Callable[[int], Any] = NARROW.get(self.dtype, self.dtype.type)

    def __call__(self, value: Any = 0) -> Any:
        """Return `value` truncated toward zero, then wrapped to the type's width."""
        if isinstance(value, (float, np.floating, ml_dtypes.bfloat16)):
            value = self._truncated(float(value))
        return self.holder(self.wrap(int(value)))

    def _truncated(self, value: float) -> int:
        """Convert as `cvt.rzi` does: NaN is 0, and what no register of 32 (or 64) bits holds saturates."""
        if math.isnan(value):
            return 0
        register = max(self.bits, 32)
        low = -(1 << register - 1) if self.signed else 0
        high = low + (1 << register) - 1
        if math.isinf(value):
            return high if value > 0 else low
        return min(max(int(value), low), high)

    def wrap(self, value: int) -> int:
        """Return `value` modulo 2**bits, in the range of the type."""
        value &= (1 << self.bits) - 1
        if self.signed and value >> self.bits - 1:
            value -= 1 << self.bits
        return value

    def __repr__(self) -> str:
        """Print as the dtype."""
        return str(self.dtype)


INTEGER_CASTS = {
    name: IntegerCast(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
_ALIASES = {"intp": "int64", "uintp": "uint64", "intc": "int32", "uintc": "uint32", "byte": "uint8", "char": "int8"}
_ALIASES |= {"short": "int16", "ushort": "uint16", "long_": "int64", "ulong": "uint64", "longlong": "int64"}
_ALIASES |= {
    f"{sign}{bits // 8}": f"{name}{bits}" for sign, name in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)
}

# The name that Numba prints for a type (and its aliases) → what that type does when a kernel calls it.
TYPES: dict[str, Any] = {
    **INTEGER_CASTS,
    **{alias: INTEGER_CASTS[name] for alias, name in _ALIASES.items()},
    **dict.fromkeys(("bool", "boolean", "bool_", "b1"), np.bool_),
    **dict.fromkeys(("float16", "f2"), np.float16),
    **dict.fromkeys(("float32", "f4", "float_", "single"), np.float32),
    **dict.fromkeys(("float64", "f8", "double"), np.float64),
    **dict.fromkeys(("bfloat16", "__nv_bfloat16"), ml_dtypes.bfloat16),
    **dict.fromkeys(("complex64", "c8"), np.complex64),
    **dict.fromkeys(("complex128", "c16"), np.complex128),
}


def adopt_scalar(value: Any) -> Any:
    """Return a host scalar as the kernel sees it: Python floats are float64, narrow integers compute in 64 bits."""
    if type(value) is float:
        return np.float64(value)
    if isinstance(value, np.integer):
        return INTEGER_CASTS[value.dtype.name](value)
    return value


# --- operators -------------------------------------------------------------------------------------------------------


def _typed(value: Any) -> Any:
    """Give a Python number the type that Numba gives it, so that it divides as NumPy's numbers do."""
    if isinstance(value, int):
        return np.float64(value)
    return np.float64(value) if type(value) is float else value


def divide(a: Any, b: Any) -> Any:
    """Return `a / b`; an integer operand is float64, and x / 0 is inf or nan."""
    return _typed(a) / _typed(b)


def floor_divide(a: Any, b: Any) -> Any:
    """Return `a // b`; an integer divided by 0 gives 0, a float inf or nan."""
    try:
        return a // b
    except ZeroDivisionError:
        return np.float64(a) // np.float64(b) if isinstance(a, float) or isinstance(b, float) else 0


def modulo(a: Any, b: Any) -> Any:
    """Return `a % b`; an integer modulo 0 gives 0, a float nan."""
    try:
        return a % b
    except ZeroDivisionError:
        return np.float64(math.nan) if isinstance(a, float) or isinstance(b, float) else 0


def power(a: Any, b: Any) -> Any:
    """Return `a ** b`; an integer to a negative power is float64, and no power raises."""
    if isinstance(b, (int, np.integer)) and b >= 0:
        return a**b
    return _typed(a if not isinstance(a, np.integer) else float(a)) ** _typed(b)


def _bitwise(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Any:
        try:
            return operation(a, b)
        except (TypeError, OverflowError):  # NumPy has no type that holds both uint64 and int64; Numba takes int64
            return INTEGER_CASTS["int64"](operation(int(a), int(b)))

    return compute


def shift_left(a: Any, b: Any) -> Any:
    """Return `a << b` in the type of `a`."""
    return a << int(b)


def shift_right(a: Any, b: Any) -> Any:
    """Return `a >> b` in the type of `a`."""
    return a >> int(b)


# The AST class of an operator → the function that stands in for it.
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Div": divide,
    "FloorDiv": floor_divide,
    "Mod": modulo,
    "Pow": power,
    "LShift": shift_left,
    "RShift": shift_right,
    "BitAnd": _bitwise(operator.and_),
    "BitOr": _bitwise(operator.or_),
    "BitXor": _bitwise(operator.xor),
}


# --- builtins --------------------------------------------------------------------------------------------------------


def to_float(value: Any = 0) -> Any:
    """Return `float(value)`: a float keeps its width, anything else becomes float64."""
    return value if isinstance(value, (np.floating, ml_dtypes.bfloat16)) else np.float64(value)


def to_nearest(value: Any, digits: int | None = None) -> Any:
    """Return `round(value)`: an int, or with `digits` a float."""
    if digits is None:
        return INTEGER_CASTS["int64"](np.rint(value))
    return np.round(value, digits)


BUILTINS: dict[str, Callable[..., Any]] = {
    "float": to_float,
    "int": INTEGER_CASTS["int64"],
    "bool": np.bool_,
    "round": to_nearest,
    "pow": power,
    "divmod": lambda a, b: (floor_divide(a, b), modulo(a, b)),
}
