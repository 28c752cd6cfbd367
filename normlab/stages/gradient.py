"""One element of the backward pass: what it adds to its row's two sums, and its own gradient when they are known.

    grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar        g = dy gamma

Called by every grad_input kernel (apex: both loops of cuComputeGradInput). Arguments as `normalised`; grad_output:
(n1, n2).
"""

from normlab.engine import cuda, load, store
from normlab.stages.recompute import (
    affine,
    clamp_by_magnitude,
    element,
    normalised,
    normalised_from_input,
    without_bias,
)


@cuda.jit(device=True)
def row_terms(grad_output, saved, row, column, mean, invvar, weight, bias, memory_efficient):
    """(g, g x̂) of one element. From a saved output g x̂ = dy (y - beta): the division by gamma cancels."""
    grad = load(grad_output, (row, column))
    value = load(saved, (row, column))
    gamma = element(weight, column)
    weighted = affine(grad, gamma, None)
    if memory_efficient:
        return weighted, grad * without_bias(value, element(bias, column))
    return weighted, weighted * normalised_from_input(value, element(mean, row), load(invvar, row))


@cuda.jit(device=True)
def gradient_gamma(weight, column, eps, memory_efficient):
    """The gamma in g = dy gamma, or None: as it is, but clamped when recomputing, as apex does.

    apex clamps it when the input was saved, too, and so gets a gradient for gamma = 0 that should be 0; we do not.
    """
    if weight is None:
        return None
    gamma = element(weight, column)
    if memory_efficient:
        return clamp_by_magnitude(gamma, eps)
    return gamma


@cuda.jit(device=True)
def input_gradient(
    grad_output, saved, row, column, mean, invvar, weight, bias, eps, memory_efficient, mean_g, mean_g_normalised
):
    """grad_input at (row, column), given mean(g) (0 for RMSNorm) and mean(g x̂) of the row."""
    gamma = gradient_gamma(weight, column, eps, memory_efficient)
    weighted = affine(load(grad_output, (row, column)), gamma, None)
    xhat = normalised(saved, row, column, mean, invvar, weight, bias, eps, memory_efficient)
    return (weighted - mean_g - xhat * mean_g_normalised) * load(invvar, row)


@cuda.jit(device=True)
def corrected(sum_gx, row_sums, row):
    """A row's sum of g x̂, with what the columns at risk lack in it: the exact mode's, in row_sums[0]; or None."""
    if row_sums is not None:
        return sum_gx + load(row_sums, (0, row))
    return sum_gx


@cuda.jit(device=True)
def leave_means(row_sums, row, mean_g, mean_gx):
    """Leave a row's mean(g) and mean(g x̂) to the exact mode, in row_sums[1] and [2]. By one thread of the row."""
    if row_sums is not None:
        store(row_sums, (1, row), mean_g)
        store(row_sums, (2, row), mean_gx)
