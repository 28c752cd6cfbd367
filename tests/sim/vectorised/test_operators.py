"""Operators, casts and functions give every lane the bits and the type that the scheduler's scalars have."""

import operator

import ml_dtypes
import numpy as np
import pytest

from normlab.sim.language.arithmetic import BUILTINS
from normlab.sim.language.functions import MATH
from normlab.sim.language.integers import BOOLS, INTEGER_CASTS, NARROW, Unsigned64
from normlab.sim.language.libdevice import LIBDEVICE
from normlab.sim.vectorised import functions
from normlab.sim.vectorised.arithmetic import COMPARISONS, UFUNCS, UNARY, binary, unary
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import HOLDERS, Mixed, Vector, collect, scalars

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the scheduler turns NumPy's warnings off
LANES = 64
INTEGERS = {int: 63, np.int64: 63, **{kind: kind.bits for kind in NARROW.values()}, Unsigned64: 64}
COMPLEX = (complex, np.complex64, np.complex128)
FLOATS = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, float, *COMPLEX)
KINDS = [*INTEGERS, *FLOATS, *BOOLS]
# Python's own operators, which stand in safe code only where the right operand is a literal other than 0.
SAFE_BY_A_LITERAL = (operator.truediv, operator.floordiv, operator.mod, operator.lshift, operator.rshift)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e30, -1e-30, 3.0, 2.0**31, -(2.0**63), 2.0**64, 7.5]


def numbers(kind, seed):
    """Return LANES scalars of a type, edges among them."""
    random = np.random.default_rng(seed)
    if kind in BOOLS:
        return [kind(bit) for bit in random.integers(0, 2, LANES)]
    if kind in FLOATS:
        values = [*SPECIAL, *random.normal(size=20), *random.integers(-9, 9, LANES - 20 - len(SPECIAL))]
        values = random.permutation(values)
        return [kind(complex(*pair) if kind in COMPLEX else pair[0]) for pair in zip(values, values[::-1], strict=True)]
    bits = INTEGERS[kind]
    unsigned = getattr(kind, "unsigned", issubclass(kind, np.unsignedinteger))
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if kind is int:  # an index is far from the ends of 64 bits
        low, high = -(1 << 31), 1 << 31
    edges = [low, high, 0, 1, min(high, 2), min(high, 7)] + ([-1, -2, -7] if low else [])
    drawn = [int(one) for one in random.integers(low, high, LANES - 32, dtype=np.uint64 if unsigned else np.int64)]
    small = [int(one) for one in random.integers(max(low, -5), 9, 32 - len(edges))]
    return [kind(one) for one in random.permutation(np.array([*edges, *drawn, *small], dtype=object))]


def vector(values):
    return Vector(type(values[0]), np.array(values, HOLDERS[type(values[0])]))


def bits(values):
    """Return types and bits of scalars; any NaN is like any other, as no operation tells them apart."""
    kinds, (first, *others) = list(map(type, values)), {type(one) for one in values}
    if others or first not in HOLDERS:
        return kinds, ["nan" if one != one else np.asarray(one, HOLDERS.get(type(one))).tobytes() for one in values]
    column = np.array(values, HOLDERS[first])
    numbers = column == column
    return kinds, numbers.tobytes(), column[numbers].tobytes()


def one_by_one(function, *columns):
    with np.errstate(all="ignore"):
        return [function(*row) for row in zip(*columns, strict=True)]


def hold(function, lanes, *columns):
    """Assert that `lanes(*vectors)` is what the scalar `function` gives each lane, or that both refuse."""
    with np.errstate(all="ignore"):
        try:
            found = lanes(*map(vector, columns))
        except Exception:  # of any kind: the engine gives up
            return False
    # Last: for what the engine refuses there is nothing to compare. This raises where the types lack the operator or an
    # int has more than 64 bits; then the engine should have refused, too.
    expected = one_by_one(function, *columns)
    collect(list(expected))
    assert bits(scalars(found, len(columns[0]))) == bits(expected)
    return True


@pytest.mark.parametrize("one", KINDS, ids=lambda kind: kind.__name__)
def test_operators_of_two_types_are_the_scalars_own(one):
    done = 0
    for other in KINDS:
        a, b = numbers(one, 1), numbers(other, 2)
        for operation in [*UFUNCS, *COMPARISONS]:
            if operation in SAFE_BY_A_LITERAL:
                done += hold(lambda x, o=operation: o(x, 3), lambda a, o=operation: binary(o, a, 3, LANES), a)
                continue
            done += hold(operation, lambda a, b, o=operation: binary(o, a, b, LANES), a, b)
            scalar = b[3]  # a uniform operand
            done += hold(
                lambda x, o=operation, s=scalar: o(x, s), lambda a, o=operation, s=scalar: binary(o, a, s, LANES), a
            )
            done += hold(
                lambda x, o=operation, s=scalar: o(s, x), lambda a, o=operation, s=scalar: binary(o, s, a, LANES), a
            )
    assert done > 100


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_unary_operators_casts_and_functions_are_the_scalars_own(kind):
    values = numbers(kind, 3)
    done = sum(hold(one, lambda a, o=one: unary(o, a, LANES), values) for one in UNARY)
    targets = [*INTEGER_CASTS.values(), np.float16, np.float32, np.float64, np.bool_, ml_dtypes.bfloat16]
    known = [*functions.PURE.values(), *targets]
    for function in known:
        done += hold(function, lambda a, f=function: functions.call(f, (a,), LANES), values)
    assert done > 10


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_larger_and_the_smaller_of_two_are_the_scalars_own(name):
    done = 0
    for one in KINDS:
        for other in KINDS:
            a, b = numbers(one, 4), numbers(other, 5)
            if one in FLOATS and other in FLOATS:  # every edge with every edge: zeros of both signs, NaN
                a = [one(edge) for edge in SPECIAL for _ in SPECIAL]
                b = [other(edge) for _ in SPECIAL for edge in SPECIAL]
            function, width = BUILTINS[name], len(a)
            done += hold(function, lambda a, b, f=function, n=width: functions.call(f, (a, b), n), a, b)
    assert done > 50


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_functions_of_math_have_the_scalars_bits_on_many_numbers(kind):
    random = np.random.default_rng(6)
    values = [kind(one) for one in np.exp(random.uniform(-50, 50, 3000)) * random.choice([-1, 1], 3000)]
    for name in functions.ONE_ARGUMENT:
        scalar = MATH[name]
        found = functions.call(scalar, (vector(values),), len(values))
        assert bits(scalars(found, len(values))) == bits(one_by_one(scalar, values)), name
    for name, _ in functions.OF_LIBDEVICE:
        scalar = getattr(LIBDEVICE, name)
        found = functions.call(scalar, (vector(values),), len(values))
        assert bits(scalars(found, len(values))) == bits(one_by_one(scalar, values)), name


def test_a_value_of_two_types_computes_each_lane_in_its_own():
    values = [np.float32(1) / 3, np.float64(1) / 3, np.float32(2), np.int64(5)]
    mixed = collect(values)
    assert type(mixed) is Mixed
    found = binary(operator.add, mixed, Vector(np.float32, np.full(4, 0.1, np.float32)), 4)
    assert bits(scalars(found, 4)) == bits([one + np.float32(0.1) for one in values])


def test_an_index_that_leaves_64_bits_is_refused():
    large = Vector(int, np.array([1 << 40, 3]))
    with pytest.raises(NotVectorisedError, match="64 bits"):
        binary(operator.mul, large, large, 2)
