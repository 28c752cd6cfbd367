"""Arithmetic is the device's: types of literals, casts, wrap-around, division by zero, functions that never raise."""

import cmath
import itertools
import math
import operator
import warnings
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, errors, float32, float64, int8, int16, int32, int64, njit, types, uint8, uint16, uint32, uint64
from numba.cuda.descriptor import cuda_target

from normlab.engine.compile.compiler import TypingError
from normlab.sim import simulate
from normlab.sim.language.arithmetic import floor_divide, modulo
from normlab.sim.language.arrays import adopt
from normlab.sim.language.integers import INTEGER_CASTS, Unsigned64
from normlab.sim.language.rewrite import Rewriter
from normlab.sim.machine.api import Cuda
from normlab.sim.machine.threads import Dim3

bfloat16, float16 = cuda.types.bfloat16, types.float16


def one(expression):
    """Run a lambda that uses the names of this module as a one-thread kernel and return its value."""
    results = []

    def kernel():
        results.append(expression())

    expression = cuda.jit(device=True)(expression)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(kernel)[1, 1]()
    return results[0]


F32, F16 = np.float32(3), np.float16(3)
NOTHING, F0, I32 = 0, np.float32(0), np.int32(5)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda: 1 / NOTHING, math.inf),
        (lambda: -1 / NOTHING, -math.inf),
        (lambda: NOTHING / NOTHING, math.nan),
        (lambda: 1.0 / NOTHING, math.inf),
        (lambda: F32 / NOTHING, math.inf),
        (lambda: F32 / F0, math.inf),
        (lambda: F0 / F0, math.nan),
        (lambda: 1.5 / F0, math.inf),
        (lambda: I32 / NOTHING, math.inf),
        (lambda: 7 // NOTHING, 0),
        (lambda: 7 % NOTHING, 0),
        (lambda: I32 // NOTHING, 0),
        (lambda: I32 % NOTHING, 0),
        (lambda: 7.0 // NOTHING, math.inf),
        (lambda: 7.0 % NOTHING, math.nan),
        (lambda: F32 % F0, math.nan),
        (lambda: NOTHING**-1, -(2**63)),
        (lambda: 0.0**-1, math.inf),
        (lambda: F0**-0.5, math.inf),
        (lambda: (-8.0) ** 0.5, math.nan),
        (lambda: (-1) ** 0.5, math.nan),
        (lambda: 10.0**400, math.inf),
        (lambda: I32**-1, 0),
        (lambda: int32(-1) ** -3, -1),
        (lambda: float32(0) ** -1, math.inf),
        (lambda: max(F0 / F0, F32), 3),
        (lambda: min(F32, math.nan, 7.0), 3),
        (lambda: 1 / max(-0.0, 0.0), math.inf),
        (lambda: 1 / min(0.0, -0.0), -math.inf),
        (lambda: math.gamma(-0.0), -math.inf),
        (lambda: math.gamma(-1.0), math.nan),
        (lambda: math.lgamma(-1.0), math.inf),
        (lambda: math.floor(F0 / F0), math.nan),
        (lambda: 1 / math.ceil(-0.5), -math.inf),
        (lambda: uint8(1) - uint8(2), 2**64 - 1),
        (lambda: uint8(7) / uint8(2), 3.5),
        (lambda: -(-2 ^ 5) * 2, 10),
        (lambda: -(7 // 2) * 5, -15),
        (lambda: uint32(1) - uint64(2), 2**64 - 1),
        (lambda: uint32(1) - 2, -1),
        (lambda: ~uint8(5), 250),
        (lambda: -uint16(5), 2**16 - 5),
        (lambda: uint32(2**31) << 33, 0),
        (lambda: abs(int8(-128)), -128),
        (lambda: int8(3) < 3.5, True),
        (lambda: uint8(3) > 3.5, False),
        (lambda: uint8(3) == 3, True),
        (lambda: F16 - int8(5), -2),
        (lambda: np.float32(1) / int16(3), np.float32(1) / np.float32(3)),
        (lambda: 2**-2, 0.25),
        (lambda: 2**10, 1024),
        (lambda: -7 // 2, -4),
        (lambda: -7 % 3, 2),
        (lambda: divmod(-7, NOTHING)[0], 0),
        (lambda: pow(2, 5), 32),
        (lambda: pow(0.0, -1), math.inf),
        (lambda: math.sqrt(-1), math.nan),
        (lambda: math.sqrt(-1.0), math.nan),
        (lambda: math.log(0), -math.inf),
        (lambda: math.log(-1.0), math.nan),
        (lambda: math.exp(1000), math.inf),
        (lambda: math.pow(0.0, -1), math.inf),
        (lambda: math.pow(F32, 2), 9),
        (lambda: math.fmod(1.0, 0.0), math.nan),
        (lambda: math.gamma(5.0), 24),
        (lambda: math.lgamma(1.0), 0),
        (lambda: math.erf(0.0), 0),
        (lambda: math.floor(-1.5), -2),
        (lambda: math.ceil(1.2), 2),
        (lambda: math.trunc(-1.7), -1),
        (lambda: math.isnan(F0 / F0), True),
        (lambda: math.copysign(2.0, -0.0), -2),
        (lambda: math.ldexp(1.0, 3), 8),
        (lambda: math.hypot(3, 4), 5),
        (lambda: math.pi, math.pi),
        (lambda: math.remainder(5.0, 3.0), -1),
        (lambda: math.remainder(1.0, 0.0), math.nan),
        (lambda: np.sqrt(np.float32(-1)), math.nan),
        (lambda: np.exp(F32 * float32(100)), math.inf),
        (lambda: round(2.5), 2),
        (lambda: round(1.26, 1), 1.3),
        (lambda: 1 / round(-0.04, 1), math.inf),
        (lambda: round(1234.5, -2), 1200.0),
        (lambda: cuda.libdevice.double2uint_rz(3e9), 3_000_000_000 - 2**32),
        (lambda: cuda.libdevice.double2ull_rz(3e9), 3_000_000_000),
        (lambda: int(-2.7), -2),
        (lambda: int(F0 / F0), -(2**63)),
        (lambda: float(3), 3.0),
        (lambda: max(1, F32), 3),
        (lambda: abs(-F32), 3),
        (lambda: 3 if F32 > 2.5 else 4, 3),
        (lambda: I32 << uint64(2**64 - 1), 0),
        (lambda: int64(-8) >> uint64(2**64 - 1), -1),
        (lambda: I32**70_000, 2**63 - 1),
        (lambda: uint64(2**64 - 1) ** -1, -1),
        (lambda: round(1e18, 2), 2.0**63 / 100),
        (lambda: max(F0 / F0, I32), math.nan),
        (lambda: max(I32, F0 / F0), 5),
        (lambda: min(F0 / F0, F32, 7.0), math.nan),
        (lambda: max(F32 > 5, uint64(2**64 - 1)) / 2, 2.0**63),
        (lambda: np.isnan(F0 / F0) + np.isnan(F0 / F0), 2),
        (lambda: math.isnan(F0 / F0) - math.isinf(F0), 1),
        (lambda: cmath.isnan(complex(F0 / F0)) + cmath.isfinite(complex(F0)), 2),
        (lambda: cuda.fp16.hgt(F16, float16(1)) + cuda.fp16.hgt(F16, float16(1)), 2),
        (lambda: cmath.log(NOTHING).real, -math.inf),
        (lambda: cmath.exp(complex(1000.0)).real, math.inf),
        (lambda: cmath.exp(complex(1000.0)).imag, math.nan),
        (lambda: np.left_shift(np.int32(2**31 - 1), I32), -32),
        (lambda: np.right_shift(uint64(7), uint16(1)), 3),
        (lambda: np.maximum(np.int32(2**24 + 1), F32), 2**24),
    ],
)
def test_an_expression_has_the_devices_value_and_never_raises_or_warns(expression, expected):
    result = one(expression)
    if isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(result)
    else:
        assert result == expected


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        (lambda: F32 * F32, np.float32),
        (lambda: F32 + 0.5, np.float64),
        (lambda: 0.5 * F32, np.float64),
        (lambda: F32 / 2, np.float64),
        (lambda: F32 / NOTHING, np.float64),
        (lambda: F32 / F32, np.float32),
        (lambda: float32(1) / float32(3), np.float32),
        (lambda: I32 / I32, np.float64),
        (lambda: 3 / 4, np.float64),
        (lambda: F32**2, np.float32),
        (lambda: F16 * F32, np.float32),
        (lambda: F16 + F16, np.float16),
        (lambda: math.sqrt(F32), np.float32),
        (lambda: math.exp(F16), np.float16),
        (lambda: math.sqrt(4), np.float64),
        (lambda: math.erf(F32), np.float32),
        (lambda: np.sqrt(F32), np.float32),
        (lambda: float(F32), np.float32),
        (lambda: bfloat16(1.0) * float32(2), np.float32),
        (lambda: math.sqrt(bfloat16(4.0)), np.float32),
        (lambda: float16(1.0), np.float16),
        (lambda: float64(F32), np.float64),
        (lambda: bfloat16(F32), ml_dtypes.bfloat16),
        (lambda: math.floor(F32), np.float32),
        (lambda: math.cosh(F16), np.float32),
        (lambda: math.pow(F32, 2), np.float64),
        (lambda: math.pi * F32, np.float64),
        (lambda: max(F32, 0.5), np.float64),
        (lambda: max(F32, F32), np.float32),
        (lambda: F16**2, np.float32),
        (lambda: F32**-1, np.float32),
        (lambda: int8(1) * F32, np.float32),
        (lambda: F32 - int16(1), np.float32),
        (lambda: F32 + uint16(1), np.float64),
        (lambda: int8(1) + F16, np.float16),
        (lambda: F16 + uint8(1), np.float32),
        (lambda: uint32(1) * uint8(1), np.uint64),
        (lambda: uint64(1) ^ uint8(1), np.uint64),
        (lambda: max(uint8(3), int8(1)), np.int64),
        (lambda: min(uint8(3), F32 > 5), np.uint64),
        (lambda: I32 + 1, np.int64),
        (lambda: uint64(3) + 1, np.int64),
        (lambda: uint64(3) - int8(1), np.int64),
        (lambda: uint64(3) * F32, np.float64),
        (lambda: 2 * F32, np.float64),
        (lambda: F32 - 1, np.float64),
        (lambda: F32 // 2, np.float64),
        (lambda: F32 % 2, np.float64),
        (lambda: F16 + 1, np.float64),
        (lambda: F32 * NOTHING, np.float64),
        (lambda: F32 * cuda.threadIdx.x, np.float64),
        (lambda: cuda.threadIdx.x + F32, np.float64),
        (lambda: F32 * True, np.float32),
        (lambda: 3 if F32 > 0 else 2, np.int64),
        (lambda: (F32 > 0) + (F32 < 5), np.int64),
        (lambda: (F32 > 0) * F32, np.float32),
        (lambda: -(F32 > 0), np.int64),
        (lambda: uint64(3) >> uint32(1), np.uint64),
        (lambda: uint64(3) ^ uint64(1), np.uint64),
        (lambda: round(I32, 1), np.float64),
        (lambda: max(uint8(3), F32), np.float32),
        (lambda: np.log2(uint8(3)), np.float32),
        (lambda: np.complex64(1j) * int8(3), np.complex64),
        (lambda: uint8(3) / np.complex64(1j), np.complex64),
        (lambda: np.complex64(1j) ** int16(3), np.complex64),
        (lambda: np.complex64(1j) ** uint16(3), np.complex128),
        (lambda: np.complex64(1j) - (F32 > 0), np.complex64),
        (lambda: complex(F32, F32), np.complex64),
        (lambda: complex(F32, 1.0), np.complex128),
        (lambda: complex(F32), np.complex64),
        (lambda: cmath.sqrt(F32), np.complex64),
        (lambda: cmath.sqrt(I32), np.complex128),
        (lambda: cmath.phase(np.complex64(1j)), np.float32),
    ],
)
def test_an_expression_has_the_devices_type(expression, kind):
    kind_in_kernel = Unsigned64 if kind is np.uint64 else kind
    assert type(one(expression)) in (kind, kind_in_kernel)


def of_add(a, b, look):
    look(a + b)


def of_sub(a, b, look):
    look(a - b)


def of_mul(a, b, look):
    look(a * b)


def of_truediv(a, b, look):
    look(a / b)


def of_floordiv(a, b, look):
    look(a // b)


def of_mod(a, b, look):
    look(a % b)


def of_pow(a, b, look):
    look(a**b)


def of_and(a, b, look):
    look(a & b)


def of_or(a, b, look):
    look(a | b)


def of_xor(a, b, look):
    look(a ^ b)


def of_lshift(a, b, look):
    look(a << b)


def of_rshift(a, b, look):
    look(a >> b)


OPERATIONS = [
    *(of_add, of_sub, of_mul, of_truediv, of_floordiv, of_mod, of_pow, of_and, of_or, of_xor, of_lshift, of_rshift),
]
KINDS = [
    *(
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bool",
    ),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_every_operator_has_the_type_that_numba_infers_for_every_pair(operation):
    """Except for bool ** int32, which Numba makes a float32."""
    context = cuda_target.typing_context
    context.refresh()
    name = operation.__name__.removeprefix("of_")
    inferring = getattr(operator, name, None) or getattr(operator, f"{name}_")
    body = Rewriter(Cuda(Dim3(1, 1, 1), Dim3(1, 1, 1), 0)).function(operation)
    compared = 0
    for one_kind, other_kind in itertools.product(KINDS, KINDS):
        pair = [types.boolean if kind == "bool" else getattr(types, kind) for kind in (one_kind, other_kind)]
        try:
            signature = context.resolve_function_type(inferring, tuple(pair), {})
        except (TypingError, errors.TypingError):  # no such operator; Numba and numba-cuda each have the class
            continue
        if (name, one_kind, other_kind) == ("pow", "bool", "int32"):
            continue
        seen = []
        body(*(adopt(np.dtype(kind).type(3)) for kind in (one_kind, other_kind)), seen.append)
        kind = {"Unsigned64": "uint64", "Boolean": "bool"}.get(type(seen[0]).__name__, type(seen[0]).__name__)
        assert kind.removesuffix("_") == str(signature.return_type), (one_kind, other_kind)
        compared += 1
    assert compared >= 60  # pairs of integers alone are 64


def test_unsigned_quotients_and_sums_with_signed_integers_have_numba_s_values():
    assert one(lambda: uint8(3) / uint8(2)) == 1.5
    assert one(lambda: uint64(3) / uint32(2)) == 1.5
    assert one(lambda: int64(2**53 + 4) + uint64(2**53 + 5)) == 2**54 + 9
    assert one(lambda: int32(-3) * uint64(5)) == -15
    assert one(lambda: float64(1.5) / uint64(3)) == 0.5
    assert not one(lambda: uint64(2**53 + 1) > int64(2**53))  # both are float64
    assert one(lambda: int32(-1) < uint64(0xFFFFFFFFFFFFFFFF))
    assert one(lambda: uint64(2**53 + 1) > uint32(5))
    assert one(lambda: int64(-1) < uint64(0))
    assert one(lambda: uint64(3) <= float64(3.5))
    assert one(lambda: float32(2.5) >= uint64(2))
    assert one(lambda: uint64(3) == uint64(3))
    assert not one(lambda: uint64(3) != 3)


def run_int(body, *arguments):
    out = np.zeros(1, np.int64)
    simulate(body)[1, 1](out, *arguments)
    return int(out[0])


def test_integers_wrap_at_64_bits_whatever_they_start_from():
    def factorial(out):
        r = 1
        for i in range(1, 30):
            r *= i
        out[0] = r // 1000

    def powers(out):
        h = 1
        for _ in range(70):
            h = h * 3
        out[0] = h // 7

    def sums(out):
        s = 0
        for _ in range(5):
            s += 2**62
        out[0] = s // 2

    def global_number(out):
        out[0] = (HUGE + HUGE) // 2

    def argument(out, n):
        out[0] = n * n // 2

    def conditional(out):
        out[0] = (2**62 if cuda.threadIdx.x == 0 else 1) * 3 // 2

    assert run_int(factorial) == -7055958792655078
    assert run_int(powers) == np.int64((3**70 + 2**63) % 2**64 - 2**63) // 7
    assert run_int(sums) == 2**62 // 2
    assert run_int(global_number) == -(2**62)
    assert run_int(argument, 2**32 + 1) == (2**33 + 1) // 2
    assert run_int(conditional) == (2**62 * 3 - 2**64) // 2


HUGE = 2**62


def test_a_shift_by_a_negative_count_does_not_raise():
    one(lambda: 1 << -1)


def test_comparisons_add_up_in_variables_too():
    def kernel(out, x):
        c = x[0] > 0
        d = x[1] > 0
        out[0] = (c + d) * 10 + (x[0] > 0) + (x[1] > 0)

    assert run_int(kernel, np.ones(2, np.float32)) == 22


def test_a_float32_and_an_integer_make_a_float64():
    def kernel(x, out):
        out[0] = x[0] + 1
        s = 0
        for _ in range(1000):
            s += x[1]
        out[1] = s
        i = cuda.threadIdx.x
        i += 3
        out[2] = np.float32(2**24 - 1) * i + x[1]
        for k in range(3, 4):
            out[3] = x[0] + k

    x, out = np.array([2**24, 0.1], np.float32), np.zeros(4)
    simulate(kernel)[1, 1](x, out)
    assert list(out[:2]) == [2**24 + 1, sum([float(np.float32(0.1))] * 1000)]
    assert out[2] == float(np.float32(2**24 - 1)) * 3 + float(np.float32(0.1))
    assert out[3] == 2**24 + 3


INFINITE, TINY, LARGE = np.float64(math.inf), np.float64(2.0**-1022), np.float64(2.0**1000)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [  # what an H200 gave
        (lambda: 0.0 // INFINITE, math.nan),
        (lambda: 0.0 % INFINITE, math.nan),
        (lambda: LARGE % INFINITE, math.nan),
        (lambda: -LARGE // INFINITE, math.nan),
        (lambda: divmod(-LARGE, INFINITE)[1], math.nan),
        (lambda: I32 % np.float32(math.inf), math.nan),
        (lambda: LARGE % TINY, -math.inf),
    ],
)
def test_a_float_remainder_is_what_the_compiler_makes_of_it(expression, expected):
    np.testing.assert_equal(one(expression), expected)


@settings(max_examples=300, deadline=None)
@given(st.integers(-(2**20), 2**20), st.integers(-500, 500).filter(bool), st.sampled_from([np.float32, np.float64]))
def test_division_of_whole_floats_is_pythons(a, b, kind):
    assert (floor_divide(kind(a), kind(b)), modulo(kind(a), kind(b))) == (a // b, a % b)
    assert type(floor_divide(kind(a), kind(b))) is kind


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda: -int8(-128), -128),
        (lambda: -int32(-(2**31)), -(2**31)),
        (lambda: -int16(5), -5),
        (lambda: int64(-7).bit_count(), 62),
        (lambda: int8(-4).bit_count(), 6),
        (lambda: int64(7).bit_count(), 3),
        (lambda: cuda.fp16.hne(math.nan, 1), False),
        (lambda: cuda.fp16.hne(1, 2), True),
        (lambda: cuda.fp16.hne(2, 2), False),
    ],
)
def test_what_the_hardware_taught(expression, expected):
    assert one(expression) == expected


def test_a_float_that_an_integer_array_cannot_hold_saturates():
    def kernel(out):
        out[0] = np.float64(math.inf)
        out[1] = np.float64(-1.5)
        out[2] = np.float64(math.nan)

    out = np.ones(3, np.uint64)
    simulate(kernel)[1, 1](out)
    assert list(out) == [2**64 - 1, 0, 2**63]


def test_nan_becomes_the_highest_bit_or_0_from_a_narrow_float_into_32_bits():
    """As PTX's cvt has it; 0 / 0 of uint64 stored into uint64 was 2**63 on an H200."""

    def kernel(wide, narrow):
        wide[0] = np.float64(math.nan)
        wide[1] = np.float32(math.nan)
        narrow[0] = np.float64(math.nan)
        narrow[1] = np.float32(math.nan)

    wide, narrow = np.ones(2, np.int64), np.ones(2, np.int32)
    simulate(kernel)[1, 1](wide, narrow)
    assert wide.tolist() == [-(2**63), -(2**63)]
    assert narrow.tolist() == [-(2**31), 0]


def test_a_bare_float_literal_accumulates_in_float64_as_the_compiler_does():
    @cuda.jit
    def kernel(x, out):
        double, single = 0.0, float32(0.0)
        for i in range(x.size):
            double += x[i]
            single += x[i]
        out[0] = double
        out[1] = single

    x, out = np.full(4000, 0.1, np.float32), np.zeros(2)
    simulate(kernel)[1, 1](x, out)
    assert out[0] == x.astype(np.float64).cumsum()[-1]
    assert out[1] == np.add.accumulate(x)[-1]
    assert out[0] != out[1]


CASTS = {"int8": int8, "int16": int16, "int32": int32, "int64": int64}
CASTS |= {"uint8": uint8, "uint16": uint16, "uint32": uint32, "uint64": uint64}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(CASTS)), st.integers(-(2**65), 2**65), st.booleans())
def test_an_integer_cast_wraps_to_the_width(name, value, through_numpy):
    cast = getattr(np, name) if through_numpy else CASTS[name]
    result = one(lambda: cast(value))
    assert result == np.array(value % 2**64, np.uint64).astype(name)
    assert isinstance(result, np.uint64 if name == "uint64" else np.int64)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda: int32(2.9), 2),
        (lambda: int32(-2.9), -2),
        (lambda: int32(1e20), 2**31 - 1),
        (lambda: int32(-1e20), -(2**31)),
        (lambda: int32(F0 / F0), 0),
        (lambda: int64(np.inf), 2**63 - 1),
        (lambda: uint32(-1.5), 0),
        (lambda: uint8(300.7), 44),
        (lambda: int32(bfloat16(-7.0)), -7),
        (lambda: int32(True), 1),
        (lambda: int8(int32(200)), -56),
        (lambda: uint64(-1), 2**64 - 1),
    ],
)
def test_a_cast_of_a_float_truncates_and_saturates(expression, expected):
    assert one(expression) == expected


def test_augmented_operators_are_the_devices_too():
    @cuda.jit
    def kernel(x, n, calls):
        def index():
            calls[0] += 1
            return 1

        a = 1
        a /= n
        x[0] = a
        x[index()] /= n
        x[2] //= n
        x[3] %= n
        b = 7
        b //= n
        x[4] = b
        b = 3
        b **= -1
        x[5] = b
        b = 3
        b <<= 2
        b |= 1
        b &= 29
        b ^= n
        b >>= 1
        x[6] = b
        x[7:8] += 4

    x, calls = np.ones(8), np.zeros(1, np.int64)
    simulate(kernel)[1, 1](x, 0, calls)
    assert x[:2].tolist() == [math.inf, math.inf]
    assert math.isinf(x[2])
    assert math.isnan(x[3])
    assert x[4:].tolist() == [0, 0, 6, 5]
    assert calls[0] == 1


def test_an_augmented_operator_on_an_element_is_the_devices_too():
    @cuda.jit
    def kernel(x, by):
        x[cuda.threadIdx.x] >>= by[0]  # NumPy has no uint64 >> int64

    x = np.array([2**63, 12], np.uint64)
    simulate(kernel)[1, 2](x, np.array([2], np.uint32))
    assert x.tolist() == [2**61, 3]


def test_operators_are_safe_in_lambdas_comprehensions_and_nested_functions():
    @cuda.jit
    def kernel(x, n):
        def nested(y):
            return y / n

        inverse = lambda y: y / n  # noqa: E731
        x[0] = nested(1)
        x[1] = inverse(-1)
        x[2] = max([y / n for y in (1, 2)])

    x = np.zeros(3)
    simulate(kernel)[1, 1](x, 0)
    assert x.tolist() == [math.inf, -math.inf, math.inf]


def test_a_kernel_without_source_runs_with_python_operators():
    namespace = {"cuda": cuda}
    exec("def kernel(x, n):\n    x[0] = 6 / n\n    x[1] = 0.5 / (n - 3)", namespace)
    x = np.zeros(2)
    simulate(cuda.jit(namespace["kernel"]))[1, 1](x, 3)
    assert x.tolist() == [2, math.inf]


# --- bits and fused multiply-add -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda: cuda.popc(0xFF), 8),
        (lambda: cuda.popc(int32(-1)), 32),
        (lambda: cuda.popc(int64(-1)), 64),
        (lambda: cuda.popc(uint8(255)), 8),
        (lambda: cuda.clz(int32(1)), 31),
        (lambda: cuda.clz(int64(1)), 63),
        (lambda: cuda.clz(int32(0)), 32),
        (lambda: cuda.clz(int32(-1)), 0),
        (lambda: cuda.ffs(0), 0),
        (lambda: cuda.ffs(8), 4),
        (lambda: cuda.brev(uint32(1)), 2**31),
        (lambda: cuda.brev(0b10110110), 0b01101101 << 24),
        (lambda: cuda.brev(uint64(1)), 2**63),
        (lambda: cuda.selp(True, 3, 4), 3),
        (lambda: cuda.selp(0, 3, 4), 4),
        (lambda: abs(cuda.cbrt(27.0) - 3) <= 2.0**-51, True),  # as CUDA documents: within one ulp
        (lambda: cuda.fma(2.0, 3.0, 1.0), 7),
        (lambda: cuda.fma(1e300, 1e300, 0.0), math.inf),
        (lambda: cuda.fma(1e300, 1e300, -math.inf), -math.inf),
        (lambda: cuda.threadfence() or cuda.threadfence_block() or cuda.threadfence_system(), None),
        (lambda: cuda.warpsize, 32),
        (lambda: cuda.nanosleep(10), None),
    ],
)
def test_functions_of_cuda(expression, expected):
    assert one(expression) == expected


floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def rounded_once(exact, kind):
    """Round a fraction to float32 or float16 by trying the neighbours of a first guess."""
    guess = kind(float(exact))
    with np.errstate(over="ignore"):
        near = [guess, np.nextafter(guess, kind(np.inf)), np.nextafter(guess, kind(-np.inf))]
    finite = [candidate for candidate in near if np.isfinite(candidate)]
    integer = np.int32 if kind is np.float32 else np.int16
    return min(finite, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(integer)) & 1))


@settings(max_examples=300, deadline=None)
@given(floats32, floats32, floats32, st.integers(-30, 5))
def test_a_float32_fma_rounds_once(a, b, c, shift):
    a, b = np.float32(a), np.float32(b)
    with np.errstate(all="ignore"):
        c = np.float32(c) if shift > 0 else np.float32(np.float64(a) * b * 2.0**shift)
    if not np.isfinite(c):
        return
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    result = one(lambda: cuda.fma(a, b, c))
    assert type(result) is np.float32
    if abs(exact) < 3.4e38:
        assert result == rounded_once(exact, np.float32)


def test_a_float32_fma_does_not_round_twice():
    a, b, c = np.float32(1 + 2**-12), np.float32(1 + 2**-12), np.float32(2.0**-60)
    assert one(lambda: cuda.fma(a, b, c)) == np.float32(1 + 2**-11 + 2**-23)
    assert np.float32(np.float64(a) * b + np.float64(c)) == np.float32(1 + 2**-11)  # what two roundings give


@settings(max_examples=100, deadline=None)
@given(*[st.floats(-1e100, 1e100)] * 3)
def test_a_float64_fma_rounds_once(a, b, c):
    result = one(lambda: cuda.fma(a, b, c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert result == exact.numerator / exact.denominator


# --- sums, maxima, angles --------------------------------------------------------------------------------------------


LARGEST = {"uint8": 255, "int64": 2**63 - 1, "uint64": 2**64 - 1, "float32": 1.1, "complex64": 1 + 2j}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(LARGEST, repeat=2)))
def test_a_sum_has_one_type_from_the_start_on_as_numba_s(first, second):
    a, b = np.dtype(first).type(LARGEST[first]), np.dtype(second).type(LARGEST[second])
    for ours, numba_s in (
        (lambda: sum((a, b)), lambda a, b: sum((a, b))),
        (lambda: sum((a, a, b)), lambda a, b: sum((a, a, b))),
    ):
        result, expected = one(ours), njit(numba_s)(a, b)
        assert np.iscomplexobj(result) == np.iscomplexobj(expected)
        np.testing.assert_allclose(complex(result), complex(expected), rtol=1e-6)


ZEROS = (np.int32(0), np.float32(0), np.float32(-0.0), np.float64(-0.0), np.float64(0), np.float64(math.nan))


@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum, np.fmax, np.fmin])
@pytest.mark.parametrize("engine", ["scheduler", "vectorised"])
def test_of_two_zeros_numpy_s_extremes_take_the_first_as_numba_s(ufunc, engine):
    @cuda.jit
    def choose(a, b, out):
        i = cuda.grid(1)
        out[i] = ufunc(a[i], b[i])

    expected = njit(lambda a, b: ufunc(a, b))
    for a, b in itertools.product(ZEROS, repeat=2):
        out = np.empty(32)
        simulate(choose, engine=engine)[1, 32](np.full(32, a), np.full(32, b), out)
        np.testing.assert_array_equal(out, np.float64(expected(a, b)))
        if not math.isnan(out[0]):
            assert set(np.signbit(out)) == {np.signbit(np.float64(expected(a, b)))}


@pytest.mark.parametrize("ufunc", [np.floor_divide, np.remainder, np.power])
@pytest.mark.parametrize("engine", ["scheduler", "vectorised"])
def test_quotients_and_powers_of_numpy_are_numba_s(ufunc, engine):
    @cuda.jit
    def compute(a, b, out):
        i = cuda.grid(1)
        out[i, 0], out[i, 1] = ufunc(a[i], b[i]), ufunc(a[i], 0.5)

    numbers = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 0.1, 7.0, -math.inf, math.inf, math.nan)
    a, b = map(np.array, zip(*itertools.product(numbers, repeat=2), strict=True))
    out, expected = np.empty((121, 2)), njit(lambda a, b: ufunc(a, b))
    simulate(compute, engine=engine)[1, 121](a, b, out)
    wanted = np.array([(expected(x, y), expected(x, 0.5)) for x, y in zip(a, b, strict=True)])
    np.testing.assert_allclose(out, wanted, rtol=1e-14)
    zeros = wanted == 0
    np.testing.assert_array_equal(np.signbit(out[zeros]), np.signbit(wanted[zeros]))


@pytest.mark.parametrize("r", [0.0, -0.0, 1.5, -math.inf, math.inf, math.nan])
@pytest.mark.parametrize("phi", [0.0, -0.0, 1.0, math.inf, math.nan])
def test_a_complex_number_of_length_and_angle_is_numba_s(r, phi):
    result, expected = one(lambda: cmath.rect(r, phi)), njit(lambda r, phi: cmath.rect(r, phi))(r, phi)
    assert repr(complex(result)) == repr(expected) or math.isclose(result.real, expected.real)


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda: cuda.libdevice.rsqrtf(4.0), np.float32(0.5)),
        (lambda: cuda.libdevice.rsqrt(F32), np.float64(1 / np.sqrt(3.0))),
        (lambda: cuda.libdevice.sqrtf(2.0), np.sqrt(np.float32(2))),
        (lambda: cuda.libdevice.sqrt(-1.0), np.float64(np.nan)),
        (lambda: cuda.libdevice.fmaf(F32, F32, F32), np.float32(12)),
        (lambda: cuda.libdevice.fma(F32, F32, F32), np.float64(12)),
        (lambda: cuda.libdevice.expf(0.1), np.exp(np.float32(0.1))),
        (lambda: cuda.libdevice.fast_expf(0.1), np.exp(np.float32(0.1))),
        (lambda: cuda.libdevice.exp(1), np.exp(1.0)),
        (lambda: cuda.libdevice.logf(0), np.float32(-np.inf)),
        (lambda: cuda.libdevice.powf(2, 0.5), np.float32(2) ** np.float32(0.5)),
        (lambda: cuda.libdevice.powif(2, -3), np.float32(0.125)),
        (lambda: cuda.libdevice.fabsf(-1), np.float32(1)),
        (lambda: cuda.libdevice.fmaxf(np.nan, 1), np.float32(1)),
        (lambda: cuda.libdevice.fminf(2, 1), np.float32(1)),
        (lambda: cuda.libdevice.frcp_rn(3), np.float32(1) / np.float32(3)),
        (lambda: cuda.libdevice.fdiv_rn(1, 3), np.float32(1) / np.float32(3)),
        (lambda: cuda.libdevice.fast_fdividef(1, 0), np.float32(np.inf)),
        (lambda: cuda.libdevice.fadd_rn(0.1, 0.2), np.float32(0.1) + np.float32(0.2)),
        (lambda: cuda.libdevice.dmul_rn(0.1, 0.2), np.float64(0.1) * 0.2),
        (lambda: cuda.libdevice.fsqrt_rn(2), np.sqrt(np.float32(2))),
        (lambda: cuda.libdevice.frsqrt_rn(2), np.float32(1 / np.sqrt(2.0))),
        (lambda: cuda.libdevice.saturatef(1.5), np.float32(1)),
        (lambda: cuda.libdevice.saturatef(np.nan), np.float32(0)),
        (lambda: cuda.libdevice.float2int_rz(-2.7), -2),
        (lambda: cuda.libdevice.float2int_rn(2.5), 2),
        (lambda: cuda.libdevice.float2int_rd(-2.1), -3),
        (lambda: cuda.libdevice.float2int_ru(2.1), 3),
        (lambda: cuda.libdevice.float2int_rn(1e20), 2**31 - 1),
        (lambda: cuda.libdevice.double2ll_rz(1e15), 10**15),
        (lambda: cuda.libdevice.int2float_rn(2**24 + 1), np.float32(2**24)),
        (lambda: cuda.libdevice.double2float_rn(0.1), np.float32(0.1)),
        (lambda: cuda.libdevice.float_as_int(1.0), 0x3F800000),
        (lambda: cuda.libdevice.int_as_float(0x3F800000), np.float32(1)),
        (lambda: cuda.libdevice.longlong_as_double(cuda.libdevice.double_as_longlong(0.1)), np.float64(0.1)),
        (lambda: cuda.libdevice.isnanf(np.nan), 1),
        (lambda: cuda.libdevice.round(-2.5), np.float64(-3)),
        (lambda: cuda.libdevice.round(0.5 - 2**-54), np.float64(0)),
        (lambda: cuda.libdevice.roundf(-np.inf), np.float32(-np.inf)),
        (lambda: cuda.libdevice.fdim(np.inf, np.inf), np.float64(0)),
        (lambda: cuda.libdevice.fdim(1, np.nan), np.float64(np.nan)),
        (lambda: cuda.libdevice.rint(2.5), np.float64(2)),
        (lambda: cuda.libdevice.sinpif(0.5), np.float32(1)),
        (lambda: cuda.libdevice.sincosf(0)[1], np.float32(1)),
        (lambda: cuda.libdevice.modf(2.5)[0], np.float64(0.5)),
        (lambda: cuda.libdevice.exp10f(2), np.float32(100)),
        (lambda: cuda.libdevice.rcbrt(8), np.float64(0.5)),
        (lambda: cuda.libdevice.tgamma(5), np.float64(24)),
        (lambda: cuda.libdevice.normcdf(0), np.float64(0.5)),
        (lambda: cuda.libdevice.fdim(3, 1), np.float64(2)),
        (lambda: cuda.libdevice.ldexpf(1, 3), np.float32(8)),
        (lambda: cuda.libdevice.popc(-1), 32),
        (lambda: cuda.libdevice.clzll(1), 63),
        (lambda: cuda.libdevice.umax(-1, 1), -1),
        (lambda: cuda.libdevice.llmin(-1, 1), -1),
        (lambda: cuda.libdevice.abs(-3), 3),
        (lambda: cuda.fp16.hadd(F16, F16), np.float16(6)),
        (lambda: cuda.fp16.hfma(F16, F16, F16), np.float16(12)),
        (lambda: cuda.fp16.hdiv(1, 3), np.float16(1) / np.float16(3)),
        (lambda: cuda.fp16.hfloor(1.5), np.float16(1)),
        (lambda: cuda.fp16.hceil(1.5), np.float16(2)),
        (lambda: cuda.fp16.hrcp(4), np.float16(0.25)),
        (lambda: cuda.fp16.hrsqrt(4), np.float16(0.5)),
        (lambda: cuda.fp16.hsqrt(-1), np.float16(np.nan)),
        (lambda: cuda.fp16.hmax(1, np.nan), np.float16(1)),
        (lambda: cuda.fp16.hneg(1), np.float16(-1)),
        (lambda: cuda.fp16.habs(-1), np.float16(1)),
        (lambda: cuda.fp16.hexp(1), np.exp(np.float16(1))),
        (lambda: cuda.fp16.hgt(2, 1), True),
        (lambda: cuda.fp16.hne(2, 2), False),
        (lambda: cuda.fp16.hmul(300, 300), np.float16(np.inf)),
    ],
)
def test_tables_of_libdevice_and_fp16(expression, expected):
    result = one(expression)
    np.testing.assert_array_equal(result, expected)
    if isinstance(expected, np.floating):
        assert type(result) is type(expected)


def test_every_name_of_numbas_fp16_that_the_simulator_has_is_one_and_the_common_ones_are_there():
    from normlab.sim.language.half import FP16
    from normlab.sim.language.libdevice import LIBDEVICE

    known = {name for name in vars(FP16) if not name.startswith("_")}
    assert known - set(dir(cuda.fp16)) <= {name for name in known if f"__{name}" in dir(cuda.fp16)}
    assert {name for name in vars(LIBDEVICE) if not name.startswith("_")} <= set(dir(cuda.libdevice))
    stock = "hadd hsub hmul hdiv hfma hneg habs hsin hcos hlog hlog2 hlog10 hexp hexp2 hexp10 hsqrt hrsqrt hceil hfloor"
    assert set((stock + " hrcp htrunc hrint heq hne hge hgt hle hlt hmax hmin").split()) <= known


@pytest.mark.parametrize("other", [3, np.int64(3), INTEGER_CASTS["int8"](3), np.bool_(True)], ids=repr)
def test_a_quotient_takes_an_unsigned_integer_as_it_is(other):
    """As the PTX does, cvt.rn.f64.u64: an int64 of the same bits would be negative."""
    large = INTEGER_CASTS["uint64"](2**63 + 2**12)
    assert large / other == (2**63 + 2**12) / int(other)
    assert other / large == int(other) / (2**63 + 2**12)
