import ml_dtypes
import numpy as np
import pytest

from normlab.oracle import Arithmetic, assert_within, ratio, unit_roundoff
from normlab.oracle.floats import float_format

INF, NAN = np.inf, np.nan


def check(got, want, bound, dtype=np.float32):
    return assert_within(np.array(got, dtype), np.array(want, float), np.array(bound, float), "y")


def test_the_largest_error_over_bound_is_returned():
    assert check([1, 2, 3], [1.5, 2.25, 3], [1, 1, 0]) == 0.5
    assert check([], [], []) == 0


def test_the_message_names_the_worst_element():
    text = (
        r"y: 2 of 4 elements are off by more than their bound; worst at \(1, 0\): "
        r"got 3.0, want 5.0, error 2, bound 0.5, ratio 4$"
    )
    with pytest.raises(AssertionError, match=text):
        check([[1, 2], [3, 4]], [[1, 2.75], [5, 4]], [[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("got", "want", "bound"),
    [
        (NAN, 1, 1e300),
        (1, NAN, 1e300),
        (INF, NAN, 1),
        (INF, -INF, 1),
        (INF, 1, 1),
        (1, INF, 1),
        (1, 1.5, NAN),  # a NaN bound lets nothing pass
        (1, INF, NAN),
        (1, 1.5, 0),
        (-INF, 3e38, 1e38),  # overflow, to the wrong side
    ],
)
def test_what_is_wrong_by_pattern_fails_whatever_the_bound(got, want, bound):
    assert ratio(np.float32([got]), [want], [bound]) == INF
    with pytest.raises(AssertionError, match="y: 1 of 1"):
        check([got], [want], [bound])


def test_a_nan_that_signals_is_wrong_without_a_warning():
    """Memory that nothing wrote may hold one; a warning is an error in this suite."""
    signals = np.array([0x7FA00000], np.uint32).view(np.float32)
    assert ratio(signals, [1.0], [1.0]) == INF


@pytest.mark.parametrize(
    ("got", "want", "bound"),
    [
        (NAN, NAN, NAN),
        (INF, INF, NAN),
        (-INF, -INF, 1),
        (INF, 3e38, 1e38),  # within the bound of overflow
        (NAN, 1, INF),  # nothing is known
        (1, 1, NAN),
        (0, 0, 0),
    ],
)
def test_what_is_right_by_pattern_passes(got, want, bound):
    assert check([got], [want], [bound]) == 0


def test_overflow_is_that_of_the_type_that_was_got():
    assert check([INF], [65510], [16], np.float16) == 0
    with pytest.raises(AssertionError):
        check([INF], [65510], [16], ml_dtypes.bfloat16)


def test_shapes_must_agree():
    with pytest.raises(AssertionError, match=r"y: got shape \(1, 2\), want shape \(2,\)"):
        check([[1, 2]], [1, 2], [0, 0])
    assert ratio(np.float32([[1]]), np.ones(1), np.ones(1)) == INF


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.float64])
def test_formats_are_those_of_ml_dtypes(dtype):
    info, mine = ml_dtypes.finfo(dtype), float_format(dtype)
    assert unit_roundoff(dtype) == mine.unit_roundoff == float(info.eps) / 2
    assert mine.largest == float(info.max)
    assert mine.half_subnormal == np.longdouble(info.smallest_subnormal) / 2


def test_an_arithmetic_nobody_knows_is_refused():
    sums = {"row_terms": 1, "row_merges": 0, "column_terms": 1, "column_merges": 0}
    with pytest.raises(ValueError, match="no floating-point format 'float8': known are bfloat16, float16"):
        Arithmetic(input="float8", **sums)
    with pytest.raises(ValueError, match="at least one term"):
        Arithmetic(**{**sums, "row_terms": 0})
    with pytest.raises(ValueError, match="statistics='naive': known are welford, two_pass, grouped"):
        Arithmetic(**sums, statistics="naive")
