"""1 / value: to within a unit in the last place; and what the quick one makes of subnormal numbers."""

import numpy as np
import pytest
from numba import cuda

from normlab.engine import compile_ptx, launch, reciprocal, reciprocal_of_normal

SMALLEST = np.float32(2.0**-126)


@cuda.jit
def invert(values, results):
    i = cuda.grid(1)
    if i < values.shape[0]:
        results[0, i] = reciprocal(values[i])
        results[1, i] = reciprocal_of_normal(values[i])


def inverted(values):
    """(2, values) results, in the simulator or, where there is one, on a GPU."""
    results = np.full((2, len(values)), np.nan, np.float32)
    launch(invert, -(-len(values) // 128), 128, np.asarray(values, np.float32), results)
    return results


def test_both_are_off_by_at_most_a_unit_in_the_last_place():
    rng = np.random.default_rng(1)
    values = np.float32(rng.uniform(1, 2, 2000) * 2.0 ** rng.integers(-126, 126, 2000) * rng.choice([-1, 1], 2000))
    true = 1 / values.astype(np.float64)
    for results in inverted(values):
        assert (abs(results - true) <= np.spacing(abs(true.astype(np.float32)))).all()


def test_what_is_or_gives_a_subnormal_number():
    small, large = np.float32(2.0**-127), np.float32(1.5 * 2.0**126)
    right, quick = inverted([small, -small, large, -large])
    assert (abs(right * [small, -small, large, -large] - 1) <= 2.0**-21).all()
    np.testing.assert_array_equal(quick, [np.inf, -np.inf, 0, 0])
    assert list(np.signbit(quick)) == [False, True, False, True]


def test_zeros_infinities_and_nan():
    for results in inverted([0.0, -0.0, np.inf, -np.inf, np.nan]):
        np.testing.assert_array_equal(results, [np.inf, -np.inf, 0, 0, np.nan])


def test_each_is_one_instruction_in_ptx():
    pytest.importorskip("numba_cuda", reason="PTX is made by numba-cuda, which has no wheels for this platform")
    ptx = compile_ptx(invert, ((np.float32, 1), (np.float32, 2)))
    assert ptx.count("rcp.approx.f32") == ptx.count("rcp.approx.ftz.f32") == 1
