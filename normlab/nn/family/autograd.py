"""The family as one autograd function for eager PyTorch: the tensors that it saves, its first and second derivatives.

Called by `normlab.nn.family.functional`. A first derivative uses the engine of the forward. With create_graph=True it
is composed of differentiable operations (`normlab.nn.family.vectorised`) on any device. Running statistics change in
place, so an evaluation's forward saves a copy of them for its backward.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines
from normlab.nn.family import aten, launched, vectorised
from normlab.nn.family.norms import Given, Norm
from normlab.nn.formulas import with_absent
from normlab.nn.private import backward_form
from normlab.nn.shapes import Gradients, Parameter


def chosen(x: Tensor) -> ModuleType:
    """Return the engine that computes norms of this tensor now."""
    if engines.by_kernels(x):
        return launched
    return aten if x.device.type == "cpu" else vectorised


class FamilyNorm(torch.autograd.Function):
    """Compute apply(norm, *given) -> output, where given are the fields of a `Given`, and its gradients."""

    @staticmethod
    def forward(ctx: Any, norm: Norm, *given: Any) -> Tensor:
        """Return the output."""
        arguments = Given(*given)
        ctx.engine, ctx.how = chosen(arguments.x), (norm, arguments.eps)
        output, mean, invvar = ctx.engine.forward(norm, arguments)
        ctx.save_for_backward(arguments.x, mean, invvar, arguments.weight, arguments.bias)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        grad_input, *affine = gradients(ctx, grad_output, ctx.engine.backward)
        return None, grad_input, None, None, *affine, None, None


def gradients(ctx: Any, grad_output: Tensor, backward: Callable[..., Gradients]) -> Gradients:
    """Return the gradients of x, weight and bias, by `backward` unless PyTorch has to see operators or operations.

    ctx has saved x, mean, invvar, weight and bias, and it has norm and eps as `ctx.how`.
    """
    x, mean, invvar, weight, bias = ctx.saved_tensors
    norm, eps = ctx.how
    form = backward_form(grad_output)
    if form == "operator":
        backward = by_operator
    elif form == "operations":
        backward = vectorised.backward
        if norm.own:  # computed again, so that autograd sees how they depend on x
            mean, invvar = vectorised.statistics(x, norm, eps)
    return backward(grad_output, x, mean, invvar, norm, weight, bias)


def by_operator(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, norm: Norm, weight: Parameter, bias: Parameter
) -> Gradients:
    """Return the gradients of x, weight and bias by one operator, for a graph."""
    found = torch.ops.normlab.family_norm_backward(grad_output, x, mean, invvar, *norm, weight, bias)
    return with_absent(found, weight, bias)
