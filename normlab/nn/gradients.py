"""The gradients of a norm that PyTorch has to trace or to differentiate again; the engines compute all others.

Second derivatives, batches of gradients and tangents must see every operation, and get `composed`. A graph that holds
a backward gets one operator, by `in_graph`. `normlab.nn.private.backward_form` tells which of the two a backward needs.
Only `composed` takes gradients at invvar or at the kept x̂. Both functions take a norm's saved tensors as `Saved`.
"""

import torch
from torch import Tensor

from normlab.nn import formulas, vectorised
from normlab.nn.shapes import Gradients, How, Parameter, Saved


def composed(
    grad_output: Tensor | None, grad_invvar: Tensor | None, grad_values: Tensor | None, saved: Saved, how: How
) -> tuple[Parameter, Parameter, Parameter]:
    """Return the gradients of x, weight and bias, differentiable, from the gradients at the forward's outputs.

    A norm that saves its output has no x for a second derivative. But the output, the invvar and the kept x̂ depend on
    x and are outputs of the forward. The second derivative adds to their gradients, and autograd carries these on to x.
    """
    result: tuple[Parameter, Parameter, Parameter] = None, None, None
    if grad_output is not None:
        anew = saved
        if not how.memory_efficient:  # statistics computed again, so that autograd sees how they depend on x
            x = saved.tensor.to(saved.invvar.dtype)
            mean, invvar = formulas.statistics(x, how.shape, how.eps, how.rms)
            anew = saved._replace(mean=mean, invvar=invvar)
        result = vectorised.backward(grad_output, anew, how)
    if grad_invvar is not None or grad_values is not None:
        further = _through_saved(grad_invvar, grad_values, saved, how).to(how.dtype)
        result = further if result[0] is None else result[0] + further, *result[1:]
    return result


def in_graph(grad_output: Tensor, saved: Saved, how: How) -> Gradients:
    """Return the gradients of x, weight and bias, by one operator."""
    tensor, invvar, weight, bias, columns, values, mean = saved
    dtype, shape, eps, rms, memory_efficient = how
    found = torch.ops.normlab.norm_backward(
        grad_output, tensor, mean, invvar, columns, values, shape, weight, bias, eps, rms, bool(memory_efficient), dtype
    )
    return formulas.with_absent(found, weight, bias)


def _through_saved(grad_invvar: Tensor | None, grad_values: Tensor | None, saved: Saved, how: How) -> Tensor:
    """Return the gradient at x caused by gradients at invvar and at the kept x̂, which only second derivatives have.

    d invvar / dx = -invvar² x̂ / n. A gradient at some columns of x̂ is `projected` like g, with 0 elsewhere.
    """
    _, shape, eps, rms, _ = how
    output, wide, kept = saved.tensor, saved.invvar.dtype, saved.kept
    gamma, beta = formulas.to(saved.weight, wide), formulas.to(saved.bias, wide)
    xhat, _ = formulas.normalised_from_output(output.to(wide), gamma, beta, eps, shape, kept)
    column = formulas.column(saved.invvar, output, shape)
    result = torch.zeros_like(xhat)
    if grad_invvar is not None:
        size = xhat.numel() // max(1, saved.invvar.numel())
        result = result - formulas.column(grad_invvar, output, shape) * column.square() * xhat / size
    if grad_values is not None and kept is not None:
        columns, _ = kept
        there = columns >= 0
        g = formulas.replaced(torch.zeros_like(xhat), columns[there].long(), grad_values[:, there])
        result = result + formulas.projected(g, None if rms else g, g * xhat, xhat, column, shape)
    return result
