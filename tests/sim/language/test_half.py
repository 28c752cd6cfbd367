"""Test the functions of cuda_fp16.h and cuda_bf16.h: values, rounding directions, saturation, and both engines."""

import math

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int16, int32

from normlab.sim import simulate
from normlab.sim.language.half import BF16, FP16

bf16 = pytest.importorskip("numba.cuda.bf16", reason="this numba.cuda has no bfloat16")
from numba.cuda.bf16 import bfloat16_to_int16_rd, hfma_sat, hmax, int32_to_bfloat16_ru  # noqa: E402

B = ml_dtypes.bfloat16
STEP = 2.0**-7  # between one bfloat16 and the next, from 1 to 2


@cuda.jit
def bindings(x, out, whole):
    i = cuda.grid(1)
    out[0, i] = bf16.hadd(x[i], x[i])
    out[1, i] = hfma_sat(x[i], x[i], x[i])
    out[2, i] = hmax(x[i], bf16.bfloat16(1.5))
    out[3, i] = int32_to_bfloat16_ru(int32(257 + i))
    out[4, i] = float32(bf16.hrcp(x[i]))
    whole[i] = bfloat16_to_int16_rd(x[i])


@pytest.mark.parametrize("engine", ["scheduler", "vectorised"])
def test_a_kernel_calls_the_bindings_of_bfloat16_under_every_name(engine):
    x = np.array([-2.5, 0.25, 1, np.nan] * 8, B)
    out, whole = np.zeros((5, 32), B), np.zeros(32, np.int16)
    simulate(bindings, engine=engine)[1, 32](x, out, whole)
    np.testing.assert_array_equal(out[:, :4].astype(np.float32), np.array([
        [-5, 0.5, 2, np.nan],
        [1, 0.3125, 1, 0],
        [1.5, 1.5, 1.5, 1.5],
        [258, 258, 260, 260],
        [B(-0.4), 4, 1, np.nan],
    ], np.float32))  # fmt: skip
    assert whole[:4].tolist() == [-3, 0, 1, 0]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        # 1 + half a step and a bit that float32 has no place for: rounded once it goes up
        ("double2bfloat16", (1 + STEP / 2 + 2.0**-40,), 1 + STEP),
        ("double2bfloat16", (1 + STEP / 2,), 1.0),
        ("double2bfloat16", (-(1 + STEP / 2 + 2.0**-40),), -1 - STEP),
        ("double2bfloat16", (1e39,), math.inf),
        ("double2bfloat16", (math.nan,), math.nan),
        ("hfma", (2.0**-20, 2.0**-20, 1 + STEP), 1 + STEP),
        ("hfma", (1 + STEP, STEP / 2, 1), 1 + STEP),  # above the middle by STEP² / 2
        ("ll2bfloat16_rn", (2**62 + 2**54 + 1,), 2.0**62 + 2.0**55),
        ("float2bfloat16_ru", (1 + STEP / 8,), 1 + STEP),
        ("float2bfloat16_rd", (1 + STEP / 8,), 1.0),
        ("float2bfloat16_rz", (-1 - STEP / 8,), -1.0),
        ("float2bfloat16_ru", (-math.inf,), -math.inf),
        ("float2bfloat16_rz", (3.4e38,), float(ml_dtypes.finfo(B).max)),
        ("hadd_sat", (2, 3), 1.0),
        ("hsub_sat", (2, 3), 0.0),
        ("hmul_sat", (math.nan, 3), 0.0),
        ("hfma_relu", (-2, 3, 1), 0.0),
        ("hfma_relu", (-2, 3, math.nan), math.nan),
        ("hmin", (math.nan, 3), 3.0),
        ("hmin_nan", (math.nan, 3), math.nan),
        ("hgtu", (math.nan, 3), True),
        ("hgtu", (2, 3), False),
        ("hneu", (math.nan, math.nan), True),
        ("hne", (math.nan, 3), False),
        ("hisinf", (-math.inf,), -1),
        ("hisinf", (math.nan,), 0),
        ("bfloat162short_rn", (2.5,), 2),
        ("bfloat162short_rn", (70000,), 32767),
        ("bfloat162uchar_rz", (-3,), 0),
        ("bfloat162char_rz", (math.nan,), 0),
        ("bfloat162uint_ru", (2.5,), 3),
        ("bfloat162ll_rz", (-math.inf,), -(2**63)),
        ("bfloat16_as_ushort", (-1,), 0xBF80),
        ("short_as_bfloat16", (0x3FC0,), 1.5),
    ],
)
def test_a_function_of_bfloat16_rounds_once_and_saturates(name, given, expected):
    with np.errstate(over="ignore", invalid="ignore"):  # as a launch does
        result = getattr(BF16, name)(*given)
    np.testing.assert_array_equal(float(result), expected)


def test_half_precision_has_the_functions_of_its_header_too():
    assert FP16.float2half_ru(np.float32(1 + 2.0**-20)) == np.float16(1 + 2.0**-10)
    assert FP16.half2short_rz(-1.75) == -1
    assert FP16.half_as_short(np.float16(1)) == 0x3C00
    assert FP16.hfma_relu(-1, 1, 0) == 0
    assert FP16.hisinf(-np.inf) == -1


@pytest.mark.parametrize("functions", [FP16, BF16])
def test_minus_zero_is_below_zero_in_all_maxima_and_minima(functions):
    for given in ((0.0, -0.0), (-0.0, 0.0)):
        for name in ("hmax", "hmax_nan"):
            assert not np.signbit(float(getattr(functions, name)(*given)))
        for name in ("hmin", "hmin_nan"):
            assert np.signbit(float(getattr(functions, name)(*given)))


def test_both_types_have_the_same_functions():
    assert {name.replace("bfloat16", "half") for name in vars(BF16)} == set(vars(FP16))


@pytest.mark.parametrize("engine", ["scheduler", "vectorised"])
def test_a_conversion_takes_any_number_in_its_own_type(engine):
    @cuda.jit
    def kernel(out):
        out[cuda.grid(1)] = bf16.int16_as_bfloat16(bf16.bfloat16_as_int16(int16(16320)))

    out = np.zeros(32, np.float32)
    simulate(kernel, engine=engine)[1, 32](out)
    assert (out == 16320).all()
