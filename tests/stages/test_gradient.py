"""The backward's element-wise stages."""

import numpy as np
import pytest

from normlab.engine import cuda, launch
from normlab.stages.gradient import input_gradient, row_terms


def kernel_for(memory_efficient):
    @cuda.jit
    def kernel(grad_output, saved, mean, invvar, weight, bias, eps, results):
        """results (3, n2), of row 0: g, g x̂, and the gradient for mean(g) = 0.5 and mean(g x̂) = 0.25."""
        column = cuda.threadIdx.x
        g, gx = row_terms(grad_output, saved, 0, column, mean, invvar, weight, bias, memory_efficient)
        results[0, column] = g
        results[1, column] = gx
        half = np.float32(0.5)
        results[2, column] = input_gradient(
            grad_output, saved, 0, column, mean, invvar, weight, bias, eps, memory_efficient, half, half * half
        )

    return kernel


KERNELS = {memory_efficient: kernel_for(memory_efficient) for memory_efficient in (False, True)}


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("memory_efficient", [False, True])
def test_row_terms_and_input_gradient_are_the_formula(memory_efficient, has_weight, has_bias):
    rng = np.random.default_rng(1)
    n2, eps = 8, np.float32(1e-3)
    xhat, grad, weight, bias = rng.normal(size=(4, n2)).astype(np.float32)
    weight[:2] = 0, -1e-4  # inside the clamp
    gamma = weight if has_weight else np.ones(n2, np.float32)
    beta = bias if has_bias else np.zeros(n2, np.float32)
    mean, invvar = np.float32([2.0]), np.float32([0.5])
    saved = (xhat * gamma + beta if memory_efficient else xhat / invvar + mean)[None]
    results = np.full((3, n2), np.nan, np.float32)
    launch(
        KERNELS[memory_efficient], 1, n2, grad[None], saved, None if memory_efficient else mean, invvar,
        weight if has_weight else None, bias if has_bias else None, eps, results,
    )  # fmt: skip

    clamped = np.where(np.abs(gamma) < eps, np.where(gamma < 0, -eps, eps), gamma)
    g = grad * (clamped if memory_efficient and has_weight else gamma)
    # in float64, from the float32 values that the stage was given
    scaled = saved[0].astype(np.float64) - beta if memory_efficient else (saved[0].astype(np.float64) - 2) * 0.5 * gamma
    back = scaled / clamped if memory_efficient else (saved[0].astype(np.float64) - 2) * 0.5
    np.testing.assert_allclose(results[0], grad * gamma, rtol=1e-6)
    np.testing.assert_allclose(results[1], grad * scaled, rtol=1e-6)
    np.testing.assert_allclose(results[2], (g - 0.5 - back * 0.25) * 0.5, rtol=2e-6, atol=1e-6)


def test_a_saved_input_gives_no_gradient_through_gamma_0():
    """apex multiplies by the clamped gamma here, too, and so returns 0.25 eps where the truth is 0."""
    zero = np.zeros((1, 1), np.float32)
    results = np.full((3, 1), np.nan, np.float32)
    one, eps = np.float32([1.0]), np.float32(0.5)
    launch(KERNELS[False], 1, 1, one[None], zero, zero[0], one, zero[0], None, eps, results)
    assert results[:2].tolist() == [[0], [0]]
    assert results[2] == -0.5  # -mean(g), and nothing of grad_output
