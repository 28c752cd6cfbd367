"""Compute the device's operators and builtins, which never raise; `operators.py` puts them in Python's place."""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from normlab.sim.language.fused import fma64, narrow_fma
from normlab.sim.language.integers import INTEGER_CASTS, Boolean, NarrowInteger, as_int64, is_unsigned, meet_in_float

# --- operators -------------------------------------------------------------------------------------------------------


def _typed(value: Any) -> Any:
    """Give a Python number the type that Numba gives it, so that it divides as NumPy's numbers do."""
    if isinstance(value, int):
        return np.float64(value)
    return np.float64(value) if type(value) is float else value


def divide(a: Any, b: Any) -> Any:
    """Return `a / b`; an integer operand is float64, and x / 0 is inf or nan."""
    return _typed(a) / _typed(b)


FLOATS = (float, np.floating)


def _integer_or_float(operation: Callable[[Any, Any], Any], part: int) -> Callable[[Any, Any], Any]:
    """Return `//` or `%`, a part of divmod; an integer divided by 0 gives 0, a float inf or nan."""

    def compute(a: Any, b: Any) -> Any:
        if isinstance(a, FLOATS) or isinstance(b, FLOATS):
            return _float_divmod(a, b)[part]
        try:
            return operation(a, b)
        except ZeroDivisionError:
            return 0

    return compute


floor_divide, modulo = _integer_or_float(operator.floordiv, 0), _integer_or_float(operator.mod, 1)


def _met(value: Any, other: Any) -> Any:
    """Return a narrow integer in the type in which it computes with `other`, any other value as it is."""
    kind = value.meets.get(type(other)) if isinstance(value, NarrowInteger) else None
    return value if kind is None else kind(value)


def _float_divmod(a: Any, b: Any) -> tuple[Any, Any]:
    """Return `a // b` and `a % b` in the steps of the PTX that Numba's compiler writes.

    The remainder of the magnitudes is x - floor(x / y)·y, fused by ptxas, where a CPU's fmod is exact: with an infinite
    y or quotient it is nan or infinite here as there. The rest is CPython's float_divmod.
    """
    a, b = _typed(_met(a, b)), _typed(_met(b, a))
    kind = np.result_type(type(a), type(b)).type
    if kind is np.float16:  # Numba has no such division in half precision
        kind = np.float32
    if kind not in (np.float32, np.float64):
        return a // b, a % b
    x, y = kind(a), kind(b)
    # On magnitudes first, signs later, as the PTX does: the sign of a remainder is the divisor's in Python, the
    # dividend's in C.
    quotient = np.floor(abs(x) / abs(y))
    remainder = fma64(-quotient, abs(y), abs(x)) if kind is np.float64 else narrow_fma(kind, -quotient, abs(y), abs(x))
    # The remainder of the magnitudes has the dividend's sign, as C's fmod has.
    if x < 0:
        remainder = -remainder
    # x / 0 is inf or NaN by IEEE 754; the corrections below would make NaN of the infinity.
    if y == 0:
        return x / y, remainder
    # Nearly whole: what the division leaves over has been taken away first.
    divided = (x - remainder) / y
    # Python rounds the quotient towards minus infinity: the remainder takes the divisor's sign.
    if remainder != 0 and (y < 0) != (remainder < 0):
        divided, remainder = divided - kind(1), remainder + y
    elif remainder == 0:
        remainder = kind(-0.0 if y < 0 else 0.0)
    # A zero keeps the sign of the true quotient, and a NaN stays one: floor would lose the sign.
    if divided == 0 or divided != divided:
        return divided * divided * x / y, remainder
    floor = np.floor(divided)  # of what is nearly whole: the division may have rounded to just below
    return floor + kind(1) if divided - floor > 0.5 else floor, remainder


def power(a: Any, b: Any) -> Any:
    """Return `a ** b`; no power raises. An integer power is a chain of multiplications."""
    a, b = _met(a, b), np.int64(b) if isinstance(b, np.bool_) else _met(b, a)
    if isinstance(a, np.bool_) and isinstance(b, np.integer):
        a = np.int64(a)
    if isinstance(b, (int, np.integer)):
        if isinstance(a, (int, np.integer)):
            kind = INTEGER_CASTS["uint64" if is_unsigned(a) and is_unsigned(b) else "int64"]
            if int(b) < 0:
                return _integer_to_negative_power(kind(a), int(b))
            if int(b) > MOST_MULTIPLICATIONS:
                return kind(np.float64(kind(a)) ** np.float64(b))
            # The third argument of `pow` wraps at 64 bits on the way.
            return kind(pow(int(a), int(b), 1 << 64))
        # NumPy's power would round once; a chain of multiplications rounds at each step, and the last bits differ.
        if isinstance(a, (float, np.floating)) and abs(int(b)) <= MOST_MULTIPLICATIONS:
            return _float_to_integer_power(a, int(b))
    # Numba has no power in half precision.
    a, b = (np.float32(value) if isinstance(value, np.float16) else value for value in (a, b))
    b = np.int64(b) if isinstance(b, NarrowInteger) else b  # which NumPy's complex numbers leave it to
    return _typed(float(a) if isinstance(a, np.integer) else a) ** _typed(b)


MOST_MULTIPLICATIONS = 0x10000  # beyond that Numba calls pow


def _integer_to_negative_power(a: Any, b: int) -> Any:
    """Return an integer, as Numba does: 0 except for 1 and -1, and the smallest int64's bits for 0."""
    if a == 0:
        return np.int64(-1 << 63)
    # Integer division of 1 by a larger number is 0. Only 1 and -1 have an integer for a reciprocal.
    return np.int64(int(a) ** (b & 1) if abs(int(a)) == 1 else 0)


def _float_to_integer_power(a: Any, b: int) -> Any:
    """Multiply in the order in which Numba does; float16 in float32."""
    # Numba widens a float16 to float32, multiplies there, and leaves the result a float32.
    kind = np.float32 if isinstance(a, np.float16) else np.float64 if type(a) is float else type(a)
    factor, result = kind(a), kind(1)
    left = abs(b)  # square and multiply, bit by bit: another order would round otherwise
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


SHIFT_BITS = 0xFFFFFFFF  # PTX's shl and shr take the low 32 bits of a count, and shift out all bits from 64 on


def shift_left(a: Any, b: Any) -> Any:
    """Return `a << b` in the type of `a`."""
    # NumPy would unite the types of both operands: `uint32 << int64` would widen to int64 before it shifts.
    return (np.int64(a) if isinstance(a, int) else a) << (int(b) & SHIFT_BITS)


def shift_right(a: Any, b: Any) -> Any:
    """Return `a >> b` in the type of `a`."""
    return a >> (int(b) & SHIFT_BITS)


# The AST class of an operator → the function that stands in for it.
# Addition, subtraction and multiplication are absent: NumPy's scalars do them as the device does, and they never raise.
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


def to_complex(real: Any = 0, imaginary: Any = None) -> Any:
    """Return `complex(real, imaginary)`: a complex number as it is, of float32s a complex64, else a complex128."""
    parts = (real,) if imaginary is None else (real, imaginary)
    if isinstance(real, (complex, np.complexfloating)):
        return real if imaginary is None else np.complex128(complex(*parts))
    kind = np.complex64 if all(type(part) is np.float32 for part in parts) else np.complex128
    return kind(complex(*parts))


def to_nearest(value: Any, digits: int | None = None) -> Any:
    """Return `round(value)`: an int, or with `digits` a float, of an integer a float64."""
    if digits is None:
        # rint rounds halves to even, as Python's round and as PTX's cvt.rni do.
        return INTEGER_CASTS["int64"](np.rint(value))
    scale = np.float64(10) ** abs(int(digits))
    scaled = np.float64(value) * scale if digits >= 0 else np.float64(value) / scale
    kind = type(value) if isinstance(value, (float, np.floating)) else np.float64
    # The scaled value has overflowed (or was no number before): there are no digits to round away.
    if not np.isfinite(scaled):
        return kind(value)
    whole = np.float64(to_nearest(scaled))  # Numba rounds to an int64: never to -0.0, and what is too large saturates
    return kind(whole / scale if digits >= 0 else whole * scale)


def int64s(indices: Any) -> Any:
    """Return an index as an np.int64, or a tuple of indices as one of np.int64; a record's field `shape` as it is."""
    # Of tuples only a shape and a grid's: a field may be a named tuple.
    return tuple(map(as_int64, indices)) if type(indices) is tuple else as_int64(indices)


def to_int(value: Any = 0) -> Any:
    """Return `int(value)`: an integer keeps its type, anything else becomes int64."""
    return value if isinstance(value, np.integer) and not isinstance(value, Boolean) else INTEGER_CASTS["int64"](value)


def _extreme(builtin: Callable[..., Any], beyond: Callable[[Any, Any], Any], negative_zero: bool) -> Callable[..., Any]:
    """Return `max` or `min`: of two floats as fmax and fmin, so a NaN is ignored and -0.0 < 0.0; the wider type wins.

    An integer with a float, and three values, are compared one after another as in Python: the second only wins if it
    is beyond the first, so a NaN that comes first stays.
    """

    def one_after_another(a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:  # as the rest would, but indices are compared all the time
            return builtin(a, b)
        if not isinstance(a, FLOATS) and not isinstance(b, FLOATS):
            if is_unsigned(a) == is_unsigned(b):
                return as_int64(builtin(a, b))
            if not meet_in_float(a, b):
                # A bool becomes unsigned beside an unsigned integer; no int64 holds every uint64.
                boolean = any(isinstance(value, (bool, np.bool_, Boolean)) for value in (a, b))
                return INTEGER_CASTS["uint64" if boolean else "int64"](builtin(a, b))
            a, b = np.float64(a), np.float64(b)
        a, b = _typed(_met(a, b)), _typed(_met(b, a))
        return np.result_type(type(a), type(b)).type(b if beyond(b, a) else a)

    def of_two(a: Any, b: Any) -> Any:
        if not isinstance(a, FLOATS) or not isinstance(b, FLOATS):
            return one_after_another(a, b)
        kind = np.result_type(type(_typed(a)), type(_typed(b))).type
        if a == b:
            return kind(a if np.signbit(a) == negative_zero else b)
        return kind(a if beyond(a, b) or b != b else b)

    def compute(*values: Any, **options: Any) -> Any:
        if len(values) == 2 and not options:
            return of_two(*values)
        return builtin(*values, **options) if len(values) == 1 or options else reduce(one_after_another, values)

    return compute


def sum_up(values: Any, start: Any = 0) -> Any:
    """Return `sum(values, start)`: what is added to has one type from the start on, that of the sum, as in Numba."""
    values, start = tuple(map(as_int64, values)), as_int64(start)
    total = reduce(operator.add, values, start)
    # An integer to which a float is added last is a float to which integers are added: it neither wraps nor has a sign.
    return reduce(operator.add, values, type(total)(start)) if isinstance(total, np.inexact) else total


def divide_with_remainder(a: Any, b: Any) -> tuple[Any, Any]:
    """Return `divmod(a, b)`: of a uint64 and a signed integer two float64, where `//` and `%` give int64."""
    a, b = (np.float64(a), np.float64(b)) if meet_in_float(a, b) else (as_int64(a), as_int64(b))
    return floor_divide(a, b), modulo(a, b)


def _without_types(value: Any) -> Any:
    """Return what a kernel prints of a value: of a tuple its numbers alone, not NumPy's names of their types."""
    if isinstance(value, tuple):
        inside = ", ".join(str(_without_types(item)) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return value.item() if isinstance(value, np.float64) else value


BUILTINS: dict[str, Callable[..., Any]] = {
    "float": to_float,
    "int": to_int,
    "max": _extreme(max, operator.gt, False),
    "min": _extreme(min, operator.lt, True),
    "sum": sum_up,
    "bool": np.bool_,
    "complex": to_complex,
    "round": to_nearest,
    "pow": power,
    "divmod": divide_with_remainder,
    "print": lambda *values: print(*map(_without_types, values)),
}
