"""`cuda.libdevice`: all of its functions are there, and give what CUDA's documentation says."""

import math
from fractions import Fraction
from importlib.util import find_spec

import numpy as np
import pytest

from normlab.sim.language.libdevice import LIBDEVICE

FLOATS = {"f": np.float32, "d": np.float64}


@pytest.mark.skipif(not find_spec("numba_cuda"), reason="the list of libdevice's functions is numba-cuda's")
def test_every_function_of_libdevice_is_there_and_gives_the_type_that_numba_declares():
    from numba.cuda import libdevicefuncs

    assert len(libdevicefuncs.functions) == 317
    for name, (result, parameters) in libdevicefuncs.functions.items():
        function = getattr(LIBDEVICE, name.removeprefix("__nv_"))
        given = [1 if str(one.ty).startswith("int") else 0.5 for one in parameters if not one.is_ptr]
        with np.errstate(all="ignore"):  # as in a launch: acosh(0.5) is NaN
            found = function(*given)
        expected = [] if str(result) == "none" else [str(result)]
        expected += [str(one.ty) for one in parameters if one.is_ptr]
        parts = found if isinstance(found, tuple) else (found,)
        assert [kind_of(part) for part in parts] == expected, name


def kind_of(value):
    return value.dtype.name if isinstance(value, np.floating) else type(value).__name__


@pytest.mark.parametrize("letter", FLOATS)
@pytest.mark.parametrize(("name", "exactly"), [
    ("add", lambda x, y: x + y), ("mul", lambda x, y: x * y), ("div", lambda x, y: x / y),
])  # fmt: skip
def test_directed_roundings_enclose_the_exact_result(letter, name, exactly):
    kind, random = FLOATS[letter], np.random.default_rng(7)
    for _ in range(300):
        x, y = (kind(random.standard_normal() * 10.0 ** random.integers(-18, 18)) for _ in range(2))
        down, up, zero = (getattr(LIBDEVICE, f"{letter}{name}_{way}")(x, y) for way in ("rd", "ru", "rz"))
        exact = exactly(Fraction(float(x)), Fraction(float(y)))
        if np.isfinite(up) and np.isfinite(down):
            assert Fraction(float(down)) <= exact <= Fraction(float(up))
        assert up in (down, np.nextafter(down, kind(np.inf)))
        assert zero == (down if exact > 0 else up)


@pytest.mark.parametrize("letter", FLOATS)
def test_roots_are_rounded_in_their_direction(letter):
    kind, random = FLOATS[letter], np.random.default_rng(8)
    for x in [kind(4), kind(2), *(kind(random.uniform(0, 1e6)) for _ in range(100))]:
        down, up = (getattr(LIBDEVICE, f"{letter}sqrt_{way}")(x) for way in ("rd", "ru"))
        assert Fraction(float(down)) ** 2 <= Fraction(float(x)) <= Fraction(float(up)) ** 2
        assert up in (down, np.nextafter(down, kind(np.inf)))


@pytest.mark.parametrize(("call", "expected"), [
    (("fadd_rd", 1, -1), -0.0), (("fadd_ru", 1, -1), 0.0), (("fadd_rd", 0.0, 0.0), 0.0),
    (("fadd_rd", 0.0, -0.0), -0.0),
    (("fsub_rd", 0.0, 0.0), -0.0),
    (("fma_ru", -1.7e308, -3.0, -math.inf), -math.inf), (("float2half_rn", math.nan), 32767),
    (("fadd_ru", -0.0, -0.0), -0.0),
    (("fmul_ru", 1e-45, 1e-45), 2.0**-149), (("fmul_rz", -1e-45, 1e-45), -0.0), (("fmul_ru", 1e38, 1e38), math.inf),
    (("fmul_rz", 1e38, 1e38), float(np.finfo(np.float32).max)), (("ddiv_ru", 1, 0), math.inf),
    (("drcp_rd", 5e-324), float(np.finfo(np.float64).max)), (("drcp_ru", -5e-324), -float(np.finfo(np.float64).max)),
    (("dsqrt_ru", -1), math.nan), (("fadd_ru", math.inf, 1), math.inf), (("fma_rd", 1, 1, -1), -0.0),
    (("int2float_rd", 2**31 - 1), 2147483520.0), (("int2float_ru", 2**31 - 1), 2147483648.0),
    (("uint2float_rz", -1), 4294967040.0), (("ll2double_rz", 2**63 - 1), float(2**63 - 1024)),
    (("double2float_ru", 1e300), math.inf), (("double2float_rz", 1e300), float(np.finfo(np.float32).max)),
    (("mulhi", 1 << 30, 8), 2), (("mulhi", -1, 1), -1), (("umulhi", -1, -1), -2), (("mul64hi", 1 << 62, 8), 2),
    (("mul24", -1, 5), -5), (("mul24", 1 << 24, 5), 0), (("umul24", -1, 2), 33554430),
    (("hadd", -3, -4), -4), (("rhadd", -3, -4), -3), (("uhadd", -1, -1), -1), (("urhadd", 1, 2), 2),
    (("sad", 3, 10, 5), 12), (("usad", 3, -1, 0), -4), (("byte_perm", 0x03020100, 0x07060504, 0x3546), 0x03050406),
    (("ilogb", 0.1), -4), (("ilogb", 0.0), -(2**31)), (("ilogb", math.inf), 2**31 - 1), (("logb", 0.0), -math.inf),
    (("scalbn", 1.5, 3), 12.0), (("double2hiint", 1.0), 1072693248), (("hiloint2double", 1072693248, 0), 1.0),
    (("cospi", 0.5), 0.0), (("cospi", 1.0), -1.0), (("sinpi", 1.0), 0.0), (("sinpi", -0.5), -1.0),
    (("sinpi", 1.5), -1.0),
    (("half2float", 15360), 1.0), (("float2half_rn", 1.0), 15360),
    (("j1", -0.0), -0.0), (("j1f", -math.inf), -0.0), (("tgamma", -1e-310), -math.inf),
    (("tgamma", -1.0), math.nan), (("tgamma", -200.5), -0.0), (("normcdf", -40.0), 0.0), (("normcdf", 40.0), 1.0),
])  # fmt: skip
def test_one_value_of_each(call, expected):
    name, *arguments = call
    found = getattr(LIBDEVICE, name)(*arguments)
    np.testing.assert_equal(float(found), float(expected))
    assert np.signbit(float(found)) == np.signbit(float(expected)) or math.isnan(expected)


def test_pairs_come_as_tuples():
    assert LIBDEVICE.frexp(8.0) == (0.5, 4)
    assert LIBDEVICE.remquo(29.0, 3.0) == (-1.0, 2)  # the quotient is 10, of which the last three bits are left
    assert LIBDEVICE.remquo(-29.0, 3.0) == (1.0, -2)
    assert LIBDEVICE.sincospi(0.5) == (1.0, 0.0)


@pytest.mark.parametrize(("name", "arguments", "expected"), [
    ("erfinv", (0.5,), 0.4769362762044699), ("erfinv", (-0.999,), -2.326753765513525), ("erfinv", (1.0,), math.inf),
    ("erfinv", (2.0,), math.nan), ("erfcinv", (1e-10,), 4.572824967389486), ("erfcinv", (1.5,), -0.4769362762044699),
    ("erfcinv", (0.0,), math.inf), ("normcdfinv", (0.025,), -1.9599639845400545), ("normcdfinv", (1.0,), math.inf),
    ("erfcx", (2.0,), 0.25539567631050576), ("erfcx", (30.0,), 0.018795888861416751), ("erfcx", (-40.0,), math.inf),
    ("j0", (1.0,), 0.7651976865579666), ("j1", (-2.5,), -0.4970941024642741), ("jn", (3, 5.0), 0.36483123061366696),
    ("jn", (3, -5.0), -0.36483123061366696), ("j0", (1000.0,), 0.024786686152420174), ("jn", (-1, 1.0), math.nan),
    ("y0", (1.0,), 0.08825696421567697), ("y1", (0.01,), -63.67859628206064), ("yn", (2, 10.0), -0.005868082442208615),
    ("y0", (1e-30,), -44.04994022787435), ("yn", (2, 1e-9), -1.2732395447351628e18), ("y1", (1e-320,), -math.inf),
    ("y0", (0.0,), -math.inf), ("y1", (-1.0,), math.nan), ("y0", (1000.0,), 0.004715917977623586),
    ("jn", (2, 0.0), math.nan), ("jn", (1, 0.0), 0.0), ("yn", (2, 0.0), -math.inf), ("yn", (1, -0.0), -math.inf),
    ("jn", (-3, math.inf), math.nan), ("jn", (3, -math.inf), 0.0), ("jn", (3, math.nan), math.nan),
    ("jn", (100, 9000.0), -0.00527545408921084),
])  # fmt: skip
def test_special_functions(name, arguments, expected):
    np.testing.assert_allclose(getattr(LIBDEVICE, name)(*arguments), expected, rtol=2e-12, atol=1e-300)
    single = getattr(LIBDEVICE, f"{name}f")(*arguments)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=3e-6)


@pytest.mark.parametrize(("name", "arguments", "expected"), [
    ("erfcinv", (0.9375899775174561,), 0.05536596310899695), ("erfcinv", (0.9996002446291297,), 0.0003542739880812941),
    ("erfcinv", (1.25,), -0.22531205501217810), ("y1", (2.2250738585072014e-308,), -2.8611174857570283e307),
    ("yn", (9, 2.220446049250313e-16), -5.0081644657573044e147),
    ("yn", (8, 2.220446049250313e-16), -6.950224376241632e130),
    ("yn", (8, 1.9925850191858947), -1907.7691237388758), ("y1", (0.8265037763502583,), -0.9487049780608301),
    ("j1", (1e-92,), 5e-93), ("j1", (-3.8,), -0.0128210029267317), ("j0", (2.4,), 0.002507683297243859),
    ("normcdf", (-27.67550701105766,), 6.884337217453219e-169), ("normcdf", (-3.5,), 0.00023262907903552504),
])  # fmt: skip
def test_special_functions_have_all_digits_where_cuda_bounds_their_ulps(name, arguments, expected):
    assert abs(getattr(LIBDEVICE, name)(*arguments) - expected) <= 6 * np.spacing(abs(expected))


def test_bessel_s_recurrence_near_zero_is_cudas():
    assert (LIBDEVICE.yn(2, -0.0), LIBDEVICE.ynf(2, -0.0)) == (math.inf, -math.inf)  # measured
    assert math.isnan(LIBDEVICE.jn(2, 1e-310))
    assert not math.isnan(LIBDEVICE.jn(2, 1e-307))
    assert math.isnan(LIBDEVICE.jnf(2, 1e-39))
    assert LIBDEVICE.jn(1, 1e-310) < 1e-12
