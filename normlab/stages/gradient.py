"""Compute the backward pass of one element: its terms of the row's two sums and, given these sums, its gradient.

    grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar        g = dy gamma

Every grad_input kernel calls these stages (apex: both loops of cuComputeGradInput). Arguments are as for `normalised`;
grad_output: (n1, n2).
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
    """Return (g, g x̂) of one element."""
    grad = load(grad_output, (row, column))
    value = load(saved, (row, column))
    gamma = element(weight, column)  # not clamped: mean(g) is taken over dy gamma as it is
    weighted = affine(grad, gamma, None)
    if memory_efficient:
        # g x̂ = dy gamma (y - beta) / gamma: gamma cancels, so a tiny gamma costs no accuracy here
        return weighted, grad * without_bias(value, element(bias, column))
    return weighted, weighted * normalised_from_input(value, element(mean, row), load(invvar, row))


@cuda.jit(device=True)
def gradient_gamma(weight, column, eps, memory_efficient):
    """Return the gamma in g = dy gamma, clamped if x̂ is recomputed from the output; None without a weight.

    apex clamps gamma also when the input was saved. For gamma = 0 apex's gradient is then not 0, but should be 0.
    """
    if weight is None:
        return None
    gamma = element(weight, column)
    if memory_efficient:  # the same clamped gamma as in x̂, as in apex
        return clamp_by_magnitude(gamma, eps)
    return gamma


@cuda.jit(device=True)
def input_gradient(
    grad_output, saved, row, column, mean, invvar, weight, bias, eps, memory_efficient, mean_g, mean_g_normalised
):
    """Return grad_input at (row, column), given the row's mean(g), which is 0 for RMSNorm, and mean(g x̂)."""
    # saved and grad_output are read a second time; rows of a block are still in L1 or L2
    gamma = gradient_gamma(weight, column, eps, memory_efficient)
    weighted = affine(load(grad_output, (row, column)), gamma, None)
    xhat = normalised(saved, row, column, mean, invvar, weight, bias, eps, memory_efficient)
    return (weighted - mean_g - xhat * mean_g_normalised) * load(invvar, row)


@cuda.jit(device=True)
def corrected(sum_gx, row_sums, row):
    """Return a row's sum of g x̂, corrected in the exact mode by row_sums[0].

    row_sums: (3, n1), or None outside the exact mode. row_sums[0] holds what the columns at risk lack in the sum.
    """
    if row_sums is not None:
        # there x̂ recomputed from the output is wrong, and the exact mode kept the forward's
        return sum_gx + load(row_sums, (0, row))
    return sum_gx


@cuda.jit(device=True)
def leave_means(row_sums, row, mean_g, mean_gx):
    """Write a row's mean(g) and mean(g x̂) to row_sums[1] and [2] for the exact mode. One thread per row calls it."""
    if row_sums is not None:  # the exact mode's repair kernel reads both means
        store(row_sums, (1, row), mean_g)  # slot 0 holds the correction that `corrected` reads
        store(row_sums, (2, row), mean_gx)
