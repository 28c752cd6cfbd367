"""The device's arithmetic on NumPy scalars: types, casts, and operators that never raise.

Numba computes every integer in 64 bits and narrows only in a cast or a store. A narrow integer is therefore an
`np.int64` here that remembers its width (for `popc`, `clz` and the like); arithmetic turns it into a plain `np.int64`,
or into an `np.uint64` where both operands are unsigned, or into a float32 where it has 8 or 16 bits and meets one.
Division by zero and shifts go through the functions further down: `operators.py` puts them in the place of the
operators.
"""

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from normlab.sim.fused import fma64, narrow_fma


class NarrowInteger(np.int64):
    """A 64-bit integer that came out of one of `bits` bits."""

    bits: int
    unsigned = False
    meets: ClassVar[dict[type, Callable[[Any], Any]]] = {}  # other operand's type → the one to compute in, if not int64

    def __abs__(self) -> Any:
        """Stay narrow, and wrap: abs(int8(-128)) is -128."""
        return INTEGER_CASTS[type(self).__name__](abs(int(self)))

    def __neg__(self) -> Any:
        """Wrap, and only then widen: -int8(-128) is -128."""
        return np.int64(INTEGER_CASTS[type(self).__name__].wrap(-int(self)))


def _meeting(operation: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    """Return a method that computes in the type that `meets` names, else as np.int64 does."""

    def method(self: NarrowInteger, other: Any) -> Any:
        kind = self.meets.get(type(other))
        if kind is None:
            mine = np.int64(self)
            return operation(other, mine) if reflected else operation(mine, other)
        result = operation(kind(other), kind(self)) if reflected else operation(kind(self), kind(other))
        return Unsigned64(result) if kind is np.uint64 else result

    return method


def _compared(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: operation(np.int64(self), other)


def _unsigned_unary(operation: Callable[[int], int]) -> Callable[[Any], Any]:
    """Return a method that computes in the operand's width and only then widens to uint64, as Numba does."""
    return lambda self: Unsigned64(operation(int(self)) & (1 << self.bits) - 1)


def _unsigned_shift(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, by: Unsigned64(operation(np.uint64(self), np.uint64(int(by))))


def _methods_of(name: str) -> dict[str, Any]:
    """Return the operators of a narrow integer, as far as they are not np.int64's: an int32's are."""
    if name == "int32":
        return {}
    methods: dict[str, Any] = {"__array_priority__": 1.0}  # NumPy's scalars on the left leave it to these
    for word in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor"):
        operation = getattr(operator, f"__{word}__")
        methods |= {f"__{word}__": _meeting(operation, False), f"__r{word}__": _meeting(operation, True)}
    for word in ("lt", "le", "gt", "ge", "eq", "ne"):
        methods[f"__{word}__"] = _compared(getattr(operator, word))
    methods["__hash__"] = np.int64.__hash__
    if name.startswith("u"):
        for word in ("neg", "pos", "invert"):
            methods[f"__{word}__"] = _unsigned_unary(getattr(operator, word))
        methods |= {f"__{word}__": _unsigned_shift(getattr(operator, word)) for word in ("lshift", "rshift")}
        methods["unsigned"] = True
    return methods


def _narrow(name: str) -> type[NarrowInteger]:
    return type(name, (NarrowInteger,), {"bits": np.dtype(name).itemsize * 8, **_methods_of(name)})


NARROW: dict[np.dtype, type[NarrowInteger]] = {
    np.dtype(name): _narrow(name) for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")
}
for _kind in NARROW.values():
    if _kind.unsigned:
        _kind.meets = dict.fromkeys([*(kind for kind in NARROW.values() if kind.unsigned), np.uint64], np.uint64)
for _name in ("int8", "int16", "uint8"):
    _kind = NARROW[np.dtype(_name)]
    _kind.meets = _kind.meets | {np.float32: np.float32, np.float16: np.float16 if _name == "int8" else np.float32}


class Unsigned64(np.uint64):
    """A uint64 that becomes an int64 where it meets a signed integer, as in Numba; NumPy's would become a float64."""

    bits = 64


def _unsigned_meeting(operation: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: Unsigned64, other: Any) -> Any:
        kind: Any = np.uint64
        if isinstance(other, (int, np.integer)) and not isinstance(other, (bool, np.uint64)):
            if not getattr(other, "unsigned", False):
                kind = INTEGER_CASTS["int64"]
            other = kind(other)
        result = operation(other, kind(self)) if reflected else operation(kind(self), other)
        return Unsigned64(result) if type(result) is np.uint64 else result

    return method


for _word in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor"):
    for _reflected in (False, True):
        _method = _unsigned_meeting(getattr(operator, f"__{_word}__"), _reflected)
        setattr(Unsigned64, f"__{'r' if _reflected else ''}{_word}__", _method)
for _word in ("lshift", "rshift"):
    setattr(Unsigned64, f"__{_word}__", _unsigned_shift(getattr(operator, _word)))
for _word in ("neg", "pos", "invert"):
    _unary = getattr(operator, _word)
    setattr(Unsigned64, f"__{_word}__", lambda self, unary=_unary: Unsigned64(unary(np.uint64(self))))
for _kind in NARROW.values():
    if _kind.unsigned:
        _kind.meets[Unsigned64] = np.uint64
WITH_LOADS_OF_THEIR_OWN: dict[np.dtype, type] = {**NARROW, np.dtype("uint64"): Unsigned64}


class IntegerCast:
    """What `int32`, `uint8`, `np.int64`, … mean in a kernel: a cast that wraps, and a dtype for arrays."""

    def __init__(self, name: str):
        """Be the type that NumPy calls `name`."""
        self.dtype = np.dtype(name)
        self.bits = self.dtype.itemsize * 8
        self.signed = self.dtype.kind == "i"
        self.holder: Callable[[int], Any] = WITH_LOADS_OF_THEIR_OWN.get(self.dtype, self.dtype.type)

    def __call__(self, value: Any = 0) -> Any:
        """Return `value` truncated toward zero, then wrapped to the type's width."""
        if isinstance(value, (float, np.floating, ml_dtypes.bfloat16)):
            value = self._truncated(value)
        return self.holder(self.wrap(int(value)))

    def _truncated(self, value: Any) -> int:
        """Convert as `cvt.rzi` does: what no register of 32 (or 64) bits holds saturates.

        NaN is the register's highest bit alone, or 0 from a narrower float into 32 bits (PTX ISA, cvt, integer notes).
        """
        register = max(self.bits, 32)
        if math.isnan(value):
            narrow = register == 32 and not isinstance(value, float)  # np.float64 is one
            return 0 if narrow else 1 << register - 1
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
    if type(value) is int and -(1 << 63) <= value < 1 << 64:
        return np.int64(value) if value < 1 << 63 else Unsigned64(value)
    if isinstance(value, np.integer):
        return INTEGER_CASTS[value.dtype.name](value)
    return value


def is_unsigned(value: Any) -> bool:
    """Return whether Numba would compute with `value` in uint64."""
    return isinstance(value, np.uint64) or (isinstance(value, NarrowInteger) and value.unsigned)


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
    if isinstance(a, FLOATS) or isinstance(b, FLOATS):
        return _float_divmod(a, b)[0]
    try:
        return a // b
    except ZeroDivisionError:
        return 0


def modulo(a: Any, b: Any) -> Any:
    """Return `a % b`; an integer modulo 0 gives 0, a float nan."""
    if isinstance(a, FLOATS) or isinstance(b, FLOATS):
        return _float_divmod(a, b)[1]
    try:
        return a % b
    except ZeroDivisionError:
        return 0


FLOATS = (float, np.floating)


def _float_divmod(a: Any, b: Any) -> tuple[Any, Any]:
    """Return `a // b` and `a % b` in the steps of the PTX that Numba's compiler writes.

    The remainder of the magnitudes is x - floor(x / y)·y, fused by ptxas, where a CPU's fmod is exact: with an infinite
    y or quotient it is nan or infinite here as there. The rest is CPython's float_divmod.
    """
    a, b = _typed(a), _typed(b)
    kind = np.result_type(type(a), type(b)).type
    if kind not in (np.float32, np.float64):
        return a // b, a % b
    x, y = kind(a), kind(b)
    quotient = np.floor(abs(x) / abs(y))
    remainder = fma64(-quotient, abs(y), abs(x)) if kind is np.float64 else narrow_fma(kind, -quotient, abs(y), abs(x))
    if x < 0:
        remainder = -remainder
    if y == 0:
        return x / y, remainder
    divided = (x - remainder) / y
    if remainder != 0 and (y < 0) != (remainder < 0):
        divided, remainder = divided - kind(1), remainder + y
    elif remainder == 0:
        remainder = kind(-0.0 if y < 0 else 0.0)
    if divided == 0 or divided != divided:
        return divided * divided * x / y, remainder
    floor = np.floor(divided)
    return floor + kind(1) if divided - floor > 0.5 else floor, remainder


def power(a: Any, b: Any) -> Any:
    """Return `a ** b`; no power raises. An integer power is a chain of multiplications."""
    if isinstance(b, (int, np.integer)):
        if isinstance(a, (int, np.integer)):
            if int(b) < 0:
                return _integer_to_negative_power(a, int(b))
            return INTEGER_CASTS["uint64" if is_unsigned(a) and is_unsigned(b) else "int64"](
                pow(int(a), int(b), 1 << 64)
            )
        if isinstance(a, (float, np.floating)) and abs(int(b)) <= MOST_MULTIPLICATIONS:
            return _float_to_integer_power(a, int(b))
    return _typed(float(a) if isinstance(a, np.integer) else a) ** _typed(b)


MOST_MULTIPLICATIONS = 0x10000  # beyond that Numba calls pow


def _integer_to_negative_power(a: Any, b: int) -> Any:
    """Return an integer, as Numba does: 0 but for 1 and -1, and the smallest int64's bits for 0."""
    kind = INTEGER_CASTS["uint64" if is_unsigned(a) else "int64"]
    if a == 0:
        return kind(1 << 63)
    return kind(int(a) ** -b if abs(int(a)) == 1 else 0)


def _float_to_integer_power(a: Any, b: int) -> Any:
    """Multiply in the order in which Numba does; float16 in float32."""
    kind = np.float32 if isinstance(a, np.float16) else np.float64 if type(a) is float else type(a)
    factor, result = kind(a), kind(1)
    left = abs(b)
    while left:
        if left & 1:
            result = result * factor
        left >>= 1
        factor = factor * factor
    return kind(np.float64(1) / result) if b < 0 else result


def _bitwise(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Any:
        try:
            return operation(a, b)
        except (TypeError, OverflowError):  # NumPy has no type that holds both uint64 and int64; Numba takes int64
            return INTEGER_CASTS["int64"](operation(int(a), int(b)))

    return compute


def shift_left(a: Any, b: Any) -> Any:
    """Return `a << b` in the type of `a`."""
    return (np.int64(a) if isinstance(a, int) else a) << int(b)


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
    scale = np.float64(10) ** abs(int(digits))
    scaled = np.float64(value) * scale if digits >= 0 else np.float64(value) / scale
    if not np.isfinite(scaled):
        return value
    whole = np.rint(scaled) + 0.0  # never -0.0: Numba rounds to an integer
    return type(value)(whole / scale if digits >= 0 else whole * scale)


def to_int(value: Any = 0) -> Any:
    """Return `int(value)`: an integer keeps its type, anything else becomes int64."""
    return value if isinstance(value, np.integer) else INTEGER_CASTS["int64"](value)


def _extreme(builtin: Callable[..., Any], beyond: Callable[[Any, Any], Any], negative_zero: bool) -> Callable[..., Any]:
    """Return `max` or `min`: of floats as fmax and fmin, so a NaN is ignored, -0.0 < 0.0 and the wider type wins."""

    def of_two(a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:  # as the rest would, but indices are compared all the time
            return builtin(a, b)
        if not isinstance(a, (float, np.floating)) and not isinstance(b, (float, np.floating)):
            result = builtin(a, b)
            return result if is_unsigned(a) == is_unsigned(b) else INTEGER_CASTS["int64"](result)
        a, b = _typed(a), _typed(b)
        kind = np.result_type(type(a), type(b)).type
        if a == b:
            return kind(a if np.signbit(a) == negative_zero else b)
        return kind(a if beyond(a, b) or b != b else b)

    def compute(*values: Any, **options: Any) -> Any:
        if len(values) == 2 and not options:
            return of_two(*values)
        return builtin(*values, **options) if len(values) == 1 or options else reduce(of_two, values)

    return compute


BUILTINS: dict[str, Callable[..., Any]] = {
    "float": to_float,
    "int": to_int,
    "max": _extreme(max, operator.gt, False),
    "min": _extreme(min, operator.lt, True),
    "bool": np.bool_,
    "round": to_nearest,
    "pow": power,
    "divmod": lambda a, b: (floor_divide(a, b), modulo(a, b)),
}
