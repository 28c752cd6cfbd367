"""Define the device's integers and types: NumPy scalars that remember their width, and casts that wrap.

Numba computes every integer in 64 bits and narrows only in a cast or a store. A narrow integer is therefore an
`np.int64` here that remembers its width (for `popc`, `clz` and the like); arithmetic turns it into a plain `np.int64`,
or into an `np.uint64` where both operands are unsigned, or into a float32 where it has 8 or 16 bits and meets one.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import ml_dtypes
import numpy as np


class NarrowInteger(np.int64):
    """A 64-bit integer that came out of one of `bits` bits."""

    bits: int
    unsigned = False
    meets: ClassVar[dict[type, Callable[[Any], Any]]] = {}  # other operand's type → the one to compute in, if not int64

    def __abs__(self) -> Any:
        """Return the absolute value in the narrow type, wrapped: abs(int8(-128)) is -128."""
        # The class bears the dtype's name, which is also the name of its cast.
        return INTEGER_CASTS[type(self).__name__](abs(int(self)))

    def __neg__(self) -> Any:
        """Return the negative, wrapped in the narrow width and then widened: -int8(-128) is -128."""
        return np.int64(INTEGER_CASTS[type(self).__name__].wrap(-int(self)))


def _meeting(operation: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    """Return a method that computes in the type that `meets` names, else as np.int64 does."""

    def method(self: NarrowInteger, other: Any) -> Any:
        kind = self.meets.get(type(other))
        if kind is None:
            # The usual case: whatever the other operand is, Numba has widened this one to int64 already.
            mine = np.int64(self)
            return operation(other, mine) if reflected else operation(mine, other)
        result = operation(kind(other), kind(self)) if reflected else operation(kind(self), kind(other))
        # Only the pair of two unsigned integers stays unsigned, and their quotient is a float64.
        return Unsigned64(result) if type(result) is np.uint64 else result

    return method


# A narrow integer is compared in 64 bits; with an Unsigned64, that compares (below).
def _compared(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: operation(np.int64(self), other)


def _unsigned_unary(operation: Callable[[int], int]) -> Callable[[Any], Any]:
    """Return a method that computes in the operand's width and only then widens to uint64, as Numba does."""
    # -uint8(1) is 255 and not 2**64 - 1: Numba negates in 8 bits, then widens.
    return lambda self: Unsigned64(operation(int(self)) & (1 << self.bits) - 1)


def _unsigned_shift(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, by: Unsigned64(operation(np.uint64(self), np.uint64(int(by))))


def _methods_of(name: str) -> dict[str, Any]:
    """Return the operators of a narrow integer, as far as they are not np.int64's: an int32's are."""
    # Numba computes an int32 as an int64, which an np.int64 does by itself: so int32 keeps NumPy's own operators, which
    # are faster than methods in Python.
    if name == "int32":
        return {}
    methods: dict[str, Any] = {"__array_priority__": 1.0}  # NumPy's scalars on the left leave it to these
    for word in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor"):
        operation = getattr(operator, f"__{word}__")
        methods |= {f"__{word}__": _meeting(operation, False), f"__r{word}__": _meeting(operation, True)}
    for word in ("lt", "le", "gt", "ge", "eq", "ne"):
        methods[f"__{word}__"] = _compared(getattr(operator, word))
    # Python takes the hash from a class that defines __eq__, and narrow integers are used as keys.
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
# Two unsigned integers meet in uint64; an unsigned and a signed one in int64, which `meets` leaves out.
for _kind in NARROW.values():
    if _kind.unsigned:
        _kind.meets = dict.fromkeys([*(kind for kind in NARROW.values() if kind.unsigned), np.uint64], np.uint64)
# With a float32 Numba computes these in float32, an int8 with a float16 in float16; other integers make it float64.
SINGLE: dict[type, Callable[[Any], Any]] = {np.float32: np.float32, np.complex64: np.complex64}
for _name in ("int8", "int16", "uint8"):
    _kind = NARROW[np.dtype(_name)]
    _kind.meets = _kind.meets | SINGLE | {np.float16: np.float16 if _name == "int8" else np.float32}


class Boolean(_narrow("int8")):  # type: ignore[misc]  # a class made by a function
    """A bool out of an array or an argument: an int64 in arithmetic, and a bool still in ~, &, | and ^ with another."""

    # Every number is wider: with a float the result has the float's type.
    meets: ClassVar[dict[type, Callable[[Any], Any]]] = SINGLE | {np.float16: np.float16}
    __neg__ = np.int64.__neg__

    def __invert__(self) -> Any:
        """Return the opposite, as Numba does of a bool."""
        return Boolean(not self)

    def __abs__(self) -> Any:
        """Return an int8, as Numba does."""
        return NARROW[np.dtype("int8")](self)

    def __str__(self) -> str:
        """Print as Python's."""
        return str(bool(self))


FALSE, TRUE = Boolean(False), Boolean(True)
NUMPY_BOOL = np.bool_


def as_boolean(value: Any) -> Any:
    """Return Python's and NumPy's bools as a `Boolean`, anything else as it is."""
    kind = type(value)  # comparisons come here all the time: names of this module are faster than isinstance
    if kind is NUMPY_BOOL or kind is bool:
        return TRUE if value else FALSE
    return value


def as_int64(value: Any) -> Any:
    """Return a Python int, such as an index, as an int64, any other value as it is."""
    return np.int64(value) if type(value) is int else value


def _bitwise_of_bools(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Boolean, other: Any) -> Any:
        result = operation(np.int64(self), other)
        return Boolean(result) if isinstance(other, BOOLS) else result

    return method


BOOLS = (bool, np.bool_, Boolean)
for _word in ("and", "or", "xor"):
    _method = _bitwise_of_bools(getattr(operator, f"__{_word}__"))
    setattr(Boolean, f"__{_word}__", _method)
    setattr(Boolean, f"__r{_word}__", _method)


class Unsigned64(np.uint64):
    """A uint64 that becomes an int64 where it meets a signed integer, as in Numba; NumPy's would become a float64."""

    bits = 64
    __array_priority__ = 1.0  # an np.int64 on the left leaves it to the methods below


# NumPy has no integer type for the union of uint64 and int64 and would take float64, which loses bits above 2**53.
def _unsigned_meeting(operation: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: Unsigned64, other: Any) -> Any:
        kind: Any = np.uint64
        if isinstance(other, (int, np.integer, np.bool_)) and not isinstance(other, np.uint64):
            if not getattr(other, "unsigned", False):
                kind = INTEGER_CASTS["int64"]
            other = kind(other)
        result = operation(other, kind(self)) if reflected else operation(kind(self), other)
        return Unsigned64(result) if type(result) is np.uint64 else result

    return method


for _word in ("add", "sub", "mul", "floordiv", "mod", "pow", "and", "or", "xor"):
    for _reflected in (False, True):
        _method = _unsigned_meeting(getattr(operator, f"__{_word}__"), _reflected)
        setattr(Unsigned64, f"__{'r' if _reflected else ''}{_word}__", _method)


# A quotient is a float64, into which each integer is converted as it is: the unsigned one never becomes an int64.
def _as_float(value: Any) -> Any:
    return np.float64(value) if isinstance(value, (int, np.integer, np.bool_)) else value


Unsigned64.__truediv__ = lambda self, other: np.float64(self) / _as_float(other)  # type: ignore[method-assign]
Unsigned64.__rtruediv__ = lambda self, other: _as_float(other) / np.float64(self)  # type: ignore[method-assign]


def meet_in_float(one: Any, other: Any) -> bool:
    """Return whether a comparison, max, min or divmod of two is of float64: of a uint64 with a signed integer it is."""
    return any(isinstance(a, np.uint64) and _is_signed(b) for a, b in ((one, other), (other, one)))


def _is_signed(value: Any) -> bool:
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, (*BOOLS, np.uint64))
    return integer and not getattr(value, "unsigned", False)


# Numba has no integer type for a uint64 and a signed integer, and compares them in float64: 2**53 + 1 equals 2**53.
def _compared_unsigned(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Unsigned64, other: Any) -> Any:
        if _is_signed(other):
            return operation(np.float64(self), np.float64(other))
        return operation(np.uint64(self), other)

    return method


for _word in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Unsigned64, f"__{_word}__", _compared_unsigned(getattr(operator, _word)))
Unsigned64.__hash__ = np.uint64.__hash__  # type: ignore[method-assign]
for _word in ("lshift", "rshift"):
    setattr(Unsigned64, f"__{_word}__", _unsigned_shift(getattr(operator, _word)))
for _word in ("neg", "pos", "invert", "abs"):
    _unary = getattr(operator, _word)
    setattr(Unsigned64, f"__{_word}__", lambda self, unary=_unary: Unsigned64(unary(np.uint64(self))))
for _kind in NARROW.values():
    if _kind.unsigned:
        _kind.meets[Unsigned64] = np.uint64
WITH_LOADS_OF_THEIR_OWN: dict[np.dtype, type] = {
    **NARROW,
    np.dtype("uint64"): Unsigned64,
    np.dtype("bool"): Boolean,
}


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
        # PTX has no conversion from a float into 8 or 16 bits: the value saturates in a 32-bit register, and wraps when
        # the register is cut.
        register = max(self.bits, 32)
        if math.isnan(value):
            narrow = register == 32 and not isinstance(value, float)  # np.float64 is one
            return 0 if narrow else 1 << register - 1
        low = -(1 << register - 1) if self.signed else 0
        high = low + (1 << register) - 1
        # int(inf) raises; the conversion saturates.
        if math.isinf(value):
            return high if value > 0 else low
        return min(max(int(value), low), high)

    def wrap(self, value: int) -> int:
        """Return `value` modulo 2**bits, in the range of the type."""
        value &= (1 << self.bits) - 1
        # The highest bit is the sign: its weight is -2**(bits - 1).
        if self.signed and value >> self.bits - 1:
            value -= 1 << self.bits
        return value

    def __repr__(self) -> str:
        """Print as the dtype."""
        return str(self.dtype)


INTEGER_CASTS = {
    name: IntegerCast(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
# By the dtype in both orders of its bytes: NumPy takes 20 times as long to tell a dtype's name.
CASTS_OF_DTYPES = {dtype: cast for cast in INTEGER_CASTS.values() for dtype in (cast.dtype, cast.dtype.newbyteorder())}
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
    """Return a host scalar as the kernel sees it: Python floats are float64, bools and integers compute in 64 bits."""
    if type(value) is float:
        return np.float64(value)
    if isinstance(value, (bool, np.bool_)):
        return Boolean(value)
    # A larger int has no type on the device: it goes through unchanged, and NumPy raises where it is used.
    if type(value) is int and -(1 << 63) <= value < 1 << 64:
        return np.int64(value) if value < 1 << 63 else Unsigned64(value)
    if isinstance(value, np.integer) and not isinstance(value, np.timedelta64):  # NumPy counts it among the integers
        return INTEGER_CASTS[value.dtype.name](value)
    return value


def is_unsigned(value: Any) -> bool:
    """Return whether Numba would compute with `value` in uint64."""
    return isinstance(value, np.uint64) or (isinstance(value, NarrowInteger) and value.unsigned)
