"""Compute operators on all lanes at once, in the types in which the scheduler computes them one by one.

What `a + b` means depends on the scalar types of both. `rule_of` asks the scalars themselves: it applies the scalar
operator to a one of each type and looks at the type of the result, which is also the type that NumPy's function must
compute in. So the rules of language/integers.py and of NumPy stand in one place only. Where no NumPy function is known
to give the same bits, `lane_by_lane` calls the scalar operator for each lane.
"""

import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from normlab.sim.language.arithmetic import BUILTINS, OPERATORS
from normlab.sim.language.integers import NARROW, Boolean, Unsigned64, meet_in_float
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import (
    BOOLEANS,
    COMPLEX,
    HOLDERS,
    SIGNED,
    Mixed,
    Vector,
    collect,
    kind_of,
    lanes_as_int64,
    merge,
    scalars,
    take,
)

SAMPLES = 1024
EXACT = 1 << 53  # an int up to here is exact in float64, so converting it through float64 rounds only once
INT64 = 1 << 63

# The scalar operator → NumPy's function. The first rows are Python's own operators, which safe code leaves in place
# where a literal makes them safe; the rest are the device's.
UFUNCS: dict[Callable, np.ufunc] = {
    operator.add: np.add,
    operator.sub: np.subtract,
    operator.mul: np.multiply,
    operator.truediv: np.true_divide,
    OPERATORS["Div"]: np.true_divide,
    operator.floordiv: np.floor_divide,
    operator.mod: np.remainder,
    OPERATORS["FloorDiv"]: np.floor_divide,
    OPERATORS["Mod"]: np.remainder,
    operator.lshift: np.left_shift,
    operator.rshift: np.right_shift,
    OPERATORS["LShift"]: np.left_shift,
    OPERATORS["RShift"]: np.right_shift,
    operator.and_: np.bitwise_and,
    operator.or_: np.bitwise_or,
    operator.xor: np.bitwise_xor,
    OPERATORS["BitAnd"]: np.bitwise_and,
    OPERATORS["BitOr"]: np.bitwise_or,
    OPERATORS["BitXor"]: np.bitwise_xor,
}
SHIFTS = (operator.lshift, operator.rshift, OPERATORS["LShift"], OPERATORS["RShift"])
INTEGERS_ONLY = (OPERATORS["FloorDiv"], OPERATORS["Mod"])  # of floats, these have steps of their own
COMPARISONS: dict[Callable, np.ufunc] = {
    operator.lt: np.less,
    operator.le: np.less_equal,
    operator.gt: np.greater,
    operator.ge: np.greater_equal,
    operator.eq: np.equal,
    operator.ne: np.not_equal,
}
UNARY: dict[Callable, np.ufunc] = {operator.neg: np.negative, operator.pos: np.positive, operator.invert: np.invert}
PLAIN = (np.bool_, np.float16, np.float32, np.float64, int, np.int64, *COMPLEX)


def _product(a: Any, b: Any) -> np.ndarray:
    """Return the products of complex numbers, each part rounded as for single numbers: NumPy fuses those of arrays."""
    made = np.empty(np.broadcast(a, b).shape, a.dtype)
    made.real = a.real * b.real - a.imag * b.imag
    made.imag = a.real * b.imag + a.imag * b.real
    return made


OF_COMPLEX: dict[Any, Callable] = {function: function for function in (np.add, np.subtract, np.true_divide)}
OF_COMPLEX[np.multiply] = _product


@cache
def trusted(function: Callable, kind: Any, scalar: Callable | None = None, count: int = 1) -> bool:
    """Return whether a function gives a whole array the bits that it, or `scalar`, gives single numbers, on samples.

    `count`: of arguments.
    """
    random = np.random.default_rng(0)

    def reals() -> np.ndarray:
        # Numbers of all magnitudes, numbers near 0 and 1, and the special ones; of two arguments, in two orders.
        spread = np.exp(random.uniform(-80, 80, SAMPLES)) * random.choice([-1.0, 1.0], SAMPLES)
        samples = np.concatenate([spread, random.uniform(-10, 10, SAMPLES), random.uniform(-1, 1, SAMPLES)])
        return random.permutation(np.concatenate([samples, [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]]))

    given: list[np.ndarray] = [reals().astype(kind) for _ in range(count)]
    with np.errstate(all="ignore"):
        for one in given if kind in COMPLEX else ():
            one.imag = reals()
        # In some builds NumPy takes other instructions for whole arrays (SIMD) than for single numbers: bits may
        # differ.
        whole = function(*given)
        single = np.array([(scalar or function)(*row) for row in zip(*given, strict=True)])
    return whole.dtype == single.dtype and _bits(whole) == _bits(single)


def _bits(numbers: np.ndarray) -> bytes:
    """Return the bytes of numbers, those of every NaN alike."""
    parts = np.stack([numbers.real, numbers.imag]) if numbers.dtype.kind == "c" else numbers
    return np.where(np.isnan(parts), parts.dtype.type(np.nan), parts).tobytes()


class Rule(NamedTuple):
    """How to compute an operator for two scalar types."""

    kind: type  # of the result
    dtype: np.dtype  # to compute in
    function: Callable


@cache
def rule_of(operation: Callable, one: type, other: type) -> Rule | None:
    """Return the rule for operands of two scalar types; None: only lane by lane.

    Raises NotVectorisedError where the scalar operator raises.
    """
    if one not in HOLDERS or other not in HOLDERS:
        raise NotVectorisedError(f"an operator meets a {(one if one not in HOLDERS else other).__name__}")
    try:
        with np.errstate(all="ignore"):
            # Of ones, because no operator divides by 0, or shifts out of range, with these.
            kind = type(operation(one(1), other(1)))
    except Exception as error:
        raise NotVectorisedError(f"an operator raises {type(error).__name__}") from None
    if operation in COMPARISONS:
        dtype = _comparable(one, other)
        return Rule(kind, dtype, COMPARISONS[operation]) if dtype is not None else None
    if kind not in HOLDERS or operation not in UFUNCS:
        return None
    dtype = HOLDERS[kind]
    if dtype.kind == "c":
        function = OF_COMPLEX.get(UFUNCS[operation])
        # Python's own complex numbers have other rules with other types, and a division by 0 that raises.
        if function is None or (kind is complex and (one is not other or function is np.true_divide)):
            return None
        return Rule(kind, dtype, function) if trusted(function, dtype.type, operation, 2) else None  # type: ignore[arg-type]
    if operation in INTEGERS_ONLY and dtype.kind not in "iu":
        return None
    if dtype.kind in "iu" and any(HOLDERS[operand].kind not in "iub" for operand in (one, other)):
        return None  # a bit operation of floats
    # No samples are needed: IEEE 754 rounds sums, products and quotients in one way, and an integer's quotient by 0 is
    # 0 in NumPy as it is for OPERATORS.
    return Rule(kind, dtype, UFUNCS[operation])


def _comparable(one: type, other: type) -> np.dtype | None:
    """Return the dtype in which numbers of two scalar types are compared."""
    if one is not other and {float, complex} & {one, other} and not {one, other} <= {float, np.float64, *SIGNED}:
        return None  # Python's take the other's type
    if meet_in_float(one(1), other(1)):
        return np.dtype(np.float64)
    # Narrow integers are compared as int64, whatever they add up to. A Python int takes the other's type.
    dtypes = {HOLDERS[kind] for kind in (one, other)}
    if int in (one, other) and len(dtypes) == 2:
        dtypes.discard(HOLDERS[int])
        if dtypes == {HOLDERS[bool]}:
            dtypes = {HOLDERS[int]}
    if any(dtype.kind not in "biuf" for dtype in dtypes):
        return None
    if len(dtypes) > 1 and any(dtype.kind == "u" for dtype in dtypes):
        return None  # a uint64 meets a narrow integer, a bool or a float: rare, so one by one
    return np.result_type(*dtypes)


def binary(operation: Callable, a: Any, b: Any, width: int) -> Any:
    """Return `operation(a, b)` for all lanes; at least one operand varies."""
    if type(a) is Mixed or type(b) is Mixed:
        return by_alternatives(lambda a, b, n: _binary_or_scalar(operation, a, b, n), (a, b), width)
    rule = rule_of(operation, kind_of(a), kind_of(b))
    if rule is None:
        return lane_by_lane(operation, (a, b), width)
    # The device takes the low 32 bits of a count, and shifts all bits out from 64 on: not NumPy's rule.
    if operation in SHIFTS and not _within(b, 0, 8 * rule.dtype.itemsize - 1):
        return lane_by_lane(operation, (a, b), width)
    left, right = in_dtype(a, rule.dtype), in_dtype(b, rule.dtype)
    # A Python int does not fit the other operand's type in some lane: the scalar operator converts it, or raises.
    if left is None or right is None:
        return lane_by_lane(operation, (a, b), width)
    data = rule.function(left, right)
    # An integer of the device wraps, and so does NumPy's. A Python int grows instead, so its bounds must show that no
    # lane has left 64 bits.
    if rule.kind is not int:
        return Vector(rule.kind, data)
    return Vector(int, data, *_bounds_after(rule.function, a, b))


def _binary_or_scalar(operation: Callable, a: Any, b: Any, width: int) -> Any:
    if type(a) in (Vector, Mixed) or type(b) in (Vector, Mixed):
        return binary(operation, a, b, width)
    return operation(a, b)


def in_dtype(value: Any, dtype: np.dtype) -> Any:
    """Return a Vector's numbers, or a scalar, in `dtype`, as the scalar operator converts them; None: it may not."""
    if type(value) is Vector:
        data = value.data
        if data.dtype == dtype:
            return data
        if value.kind is int and dtype.kind in "fc" and not _within(value, -EXACT, EXACT):
            return None
        if value.kind is int and dtype.kind in "iu" and dtype != np.int64:
            # Python's int refuses to become a uint64 that cannot hold it; `astype` would wrap it.
            limits = np.iinfo(dtype)
            if not _within(value, int(limits.min), int(limits.max)):
                return None
        return data.astype(dtype)
    if type(value) is int:
        if dtype.kind in "fc":
            return dtype.type(value)
        return dtype.type(value) if -INT64 <= value < INT64 and (value >= 0 or dtype.kind != "u") else None
    # Through an array: a uint64 becomes an int64 of the same bits there, where the scalar's own conversion would raise.
    return np.array(value, HOLDERS.get(type(value))).astype(dtype)[()]


def _within(value: Any, low: int, high: int) -> bool:
    """Return whether all lanes' integers lie in a range."""
    if type(value) is not Vector:
        return low <= int(value) <= high
    # A bool is 0 or 1, which lie in every range that is asked for. A float never counts as inside.
    if value.data.dtype.kind not in "iu":
        return value.data.dtype.kind == "b"
    least, most = value.bounds()
    return low <= least and most <= high


def _ends(value: Any) -> tuple[int, int]:
    return value.bounds() if type(value) is Vector else (int(value), int(value))


def _bounds_after(function: Callable, a: Any, b: Any) -> tuple[int | None, int | None]:
    """Return bounds of a result of Python ints; raises NotVectorisedError where they leave 64 bits."""
    if function is np.left_shift and type(b) is int:
        function, b = np.multiply, 1 << b
    if function in (np.add, np.subtract, np.multiply):
        for attempt in range(2):
            low, high = _bounds_of(function, *_ends(a), *_ends(b))
            if low >= -INT64 and high < INT64:
                return low, high
            for value in (a, b):  # the bounds of ranges may be far from the numbers: measure those
                if type(value) is Vector and not attempt:
                    value.low = None
        raise NotVectorisedError("an index leaves 64 bits")
    # Bounds that follow from those of the operands. All others are measured when they are asked for.
    low, high = _ends(a)
    if function is np.floor_divide and type(b) is int and b > 0:
        return low // b, high // b
    if function is np.remainder and type(b) is int and b > 0:
        return (low, high) if low >= 0 and high < b else (0, b - 1)
    if function is np.right_shift:
        return min(low, 0), max(high, 0)  # towards 0 or -1
    if function is np.bitwise_and and type(b) is int and b >= 0:
        return 0, b
    return None, None


def _bounds_of(function: Callable, low: int, high: int, other_low: int, other_high: int) -> tuple[int, int]:
    if function is np.add:
        return low + other_low, high + other_high
    if function is np.subtract:
        return low - other_high, high - other_low
    # A product is largest and smallest at ends of both ranges.
    corners = (low * other_low, low * other_high, high * other_low, high * other_high)
    return min(corners), max(corners)


@cache
def _unary_kind(operation: Callable, kind: type) -> type | None:
    """Return the result's type where NumPy's function gives it, as for the types that have NumPy's own operators."""
    if kind not in PLAIN or (kind is np.bool_ and operation is not operator.invert):
        return None
    return type(operation(kind(1))) if not (operation is operator.invert and HOLDERS[kind].kind in "fc") else None


def unary(operation: Callable, value: Any, width: int) -> Any:
    """Return `operation(value)` for all lanes of a value that varies."""
    if type(value) is Mixed:
        return by_alternatives(
            lambda a, n: unary(operation, a, n) if type(a) is Vector else operation(a), (value,), width
        )
    if value.kind is Boolean:
        if operation is operator.invert:
            return Vector(Boolean, 1 - value.data)
        # Every operator but `~` takes a Boolean as the int64 0 or 1.
        value = Vector(np.int64, value.data)
    kind = _unary_kind(operation, value.kind)
    if kind is None:
        return lane_by_lane(operation, (value,), width)
    data = UNARY[operation](value.data)
    if kind is int and operation is operator.neg:
        low, high = value.bounds()
        # -(-2**63) is no int64.
        if low == -INT64:
            raise NotVectorisedError("an index leaves 64 bits")
        return Vector(int, data, -high, -low)
    return Vector(kind, data)


def truth(value: Any, width: int) -> Any:
    """Return whether a value counts as true: a bool, or an array of bools where it varies."""
    kind = type(value)
    if kind is Vector:
        return value.data if value.kind in BOOLEANS else value.data != 0
    if kind is Mixed:
        made = by_alternatives(lambda a, n: _as_bools(truth(a, n)), (value,), width)
        return made.data if type(made) is Vector else bool(made)
    return bool(value)


def _as_bools(found: Any) -> Any:
    return Vector(bool, found) if isinstance(found, np.ndarray) else found


def lane_by_lane(function: Callable, arguments: tuple, width: int) -> Any:
    """Return `function(*arguments)`, called for each lane with its scalars."""
    columns = [scalars(argument, width) for argument in arguments]
    return collect([function(*row) for row in zip(*columns, strict=True)])


def by_alternatives(function: Callable, arguments: tuple, width: int) -> Any:
    """Return what `function(*arguments, width)` gives for the lanes of each combination of types."""
    pieces = [(places, function(*given, len(places))) for places, given in alternatives(arguments, width)]
    return merge(width, pieces, None)


def alternatives(arguments: tuple, width: int) -> Iterator[tuple[np.ndarray, list]]:
    """Yield the places of the lanes of each combination of types, and the arguments that they have."""
    # The choices of all arguments are the digits of a lane's label.
    labels = np.zeros(width, np.int64)
    for argument in arguments:
        if type(argument) is Mixed:
            if (argument.choice < 0).any():
                raise NotVectorisedError("a variable is read in lanes that have not assigned it")
            labels = labels * len(argument.values) + argument.choice
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        yield places, [take(argument, places) for argument in arguments]


# Integers of which `max` and `min` give either operand, an index as an int64: two of the signed ones, or of the others.
INDICES = int, np.int64, *(kind for kind in NARROW.values() if not kind.unsigned)
UNSIGNED = Unsigned64, *(kind for kind in NARROW.values() if kind.unsigned)


def _either(beyond: Callable, a: Any, b: Any, width: int) -> Any:
    """Return `b` in the lanes in which it is beyond `a`, which may be of another type, and `a` in the others."""
    left, right = (value.data if type(value) is Vector else value for value in (a, b))
    second = beyond(right, left)
    pieces = [(np.flatnonzero(lanes), value) for lanes, value in ((~second, a), (second, b))]
    # Each lane gets an operand with its type, so the result may be a Mixed.
    return merge(width, [(places, take(value, places)) for places, value in pieces if len(places)], None)


def extreme(builtin: Callable) -> Callable:
    """Return the vectorised `max` or `min` of two, for the device's BUILTINS[builtin]."""
    scalar = BUILTINS[builtin.__name__]
    beyond = np.greater if builtin is max else np.less
    negative_zero = builtin is min

    def compute(a: Any, b: Any, width: int) -> Any:
        one, other = kind_of(a), kind_of(b)
        if one is other and one in SIGNED:
            left, right = in_dtype(a, HOLDERS[int]), in_dtype(b, HOLDERS[int])
            if left is None or right is None:
                return lane_by_lane(scalar, (a, b), width)
            data = (np.maximum if builtin is max else np.minimum)(left, right)
            if one is not int:
                return Vector(one, data)
            (low, high), (other_low, other_high) = _ends(a), _ends(b)
            return Vector(int, data, builtin(low, other_low), builtin(high, other_high))
        if any(one in kinds and other in kinds for kinds in (INDICES, UNSIGNED)):
            return _either(beyond, lanes_as_int64(a), lanes_as_int64(b), width)
        if one not in (np.float32, np.float64) or other not in (np.float32, np.float64):
            return lane_by_lane(scalar, (a, b), width)
        kind = np.result_type(one, other).type
        left, right = in_dtype(a, np.dtype(kind)), in_dtype(b, np.dtype(kind))
        # A comparison with NaN is false: a NaN on the left loses so, one on the right by the second condition.
        chosen = np.where(beyond(left, right) | (right != right), left, right)
        # Of 0.0 and -0.0, max takes the first and min the second.
        equal = np.where(np.signbit(left) == negative_zero, left, right)
        return Vector(kind, np.where(left == right, equal, chosen))

    return compute
