"""Recomputing x̂ from the saved output follows the law of DESIGN.md."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import hard_weights, within
from numpy_kernels import NumpyKernels, stored

from normlab.oracle import layer_norm, layer_norm_backward_bound, recompute_error
from normlab.oracle.floats import float_format

FORMATS = st.sampled_from(["float32", "float16", "bfloat16"])


def recomputed(seed, dtype, eps, bias_scale):
    """One row with grad_output 1, where grad_weight is x̂: (got, want, bound, law), each (64,)."""
    rng = np.random.default_rng(seed)
    kernel = NumpyKernels("float32", dtype, "float32")
    x = within(rng.normal(size=(1, 64)), "float32")
    weight = within(np.where(rng.random(64) < 0.5, hard_weights(rng, 64, eps), rng.normal(size=64)), "float32")
    bias = within(rng.normal(size=64) * bias_scale, "float32")
    output, _, invvar = layer_norm(x, 64, weight, bias, eps)
    xhat = layer_norm(x, 64, eps=eps).output[0]
    ones = np.ones((1, 64), np.float32)
    got = kernel.backward(
        ones, stored(output, dtype), None, invvar.astype(np.float32), weight, bias, eps, memory_efficient=True
    ).grad_weight
    bound = layer_norm_backward_bound(
        ones, x, 64, weight, bias, eps, kernel.arithmetic(1, 64), memory_efficient=True
    ).grad_weight
    law = recompute_error(xhat, weight, bias, eps, dtype)
    # The law leaves out gradual underflow of the output.
    law = law + float(float_format(dtype).half_subnormal) / np.maximum(abs(weight.astype(float)), eps)
    return got, xhat, bound, law


@settings(deadline=None)
@given(st.integers(0, 2**32), FORMATS, st.sampled_from([1e-5, 1e-3]), st.sampled_from([0.0, 1e-2, 1.0, 100.0]))
def test_a_recomputed_x_hat_is_off_by_three_times_the_law_at_most(seed, dtype, eps, bias_scale):
    got, xhat, bound, law = recomputed(seed, dtype, eps, bias_scale)
    assert (abs(got - xhat) <= 3 * law).all()
    # The bound adds float32 roundings to the law: of y - β, 1 / γ (two), the quotient, the product, the sum and its
    # storage.
    assert (bound <= 9 * law).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_law_is_reached(dtype):
    got, xhat, _, law = recomputed(0, dtype, 1e-5, 1.0)
    assert (abs(got - xhat) / law).max() > 0.5


def test_below_eps_the_law_is_the_clamps_bias():
    assert recompute_error([2.0, 2.0], [0.0, 0.5e-5], None, 1e-5, "float32").round(5).tolist() == [2.0, 1.0]


@pytest.mark.parametrize("eps", [np.inf, 10**400])
def test_an_infinite_eps_loses_all_of_x_hat(eps):
    assert recompute_error([2.0, -3.0], [1.0, -1.0], [1.0, 0.0], eps, "float16").tolist() == [2.0, 3.0]


def test_what_is_no_number_is_refused_by_the_law_too():
    with pytest.raises(TypeError, match="weight has dtype complex128, but real numbers are needed"):
        recompute_error(1.0, 1j, None, 1e-5, "float16")
    with pytest.raises(TypeError, match="eps must be a real number, got None"):
        recompute_error(1.0, 1.0, None, None, "float16")


def test_without_parameters_the_law_is_one_rounding():
    assert recompute_error(-3.0, None, None, 1e-5, "bfloat16") == 3 * 2**-8
