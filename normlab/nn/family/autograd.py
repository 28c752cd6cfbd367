"""The family as one autograd function, for eager PyTorch: what is saved, and the gradients, once and twice.

Called by `normlab.nn.family.functional`. A first derivative runs where the forward ran; with create_graph=True it is
composed of differentiable operations (`normlab.nn.family.vectorised`) on any device. Running statistics change in
place; the backward keeps a copy of those that an evaluation took.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines
from normlab.nn.family import launched, vectorised
from normlab.nn.family.norms import Norm
from normlab.nn.shapes import Gradients, Parameter


def chosen(x: Tensor) -> ModuleType:
    """The module that computes norms of this tensor now."""
    return launched if engines.by_kernels(x) else vectorised


class FamilyNorm(torch.autograd.Function):
    """apply(x, weight, bias, running_mean, running_var, norm, momentum, eps) -> output."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Parameter,
        bias: Parameter,
        running_mean: Parameter,
        running_var: Parameter,
        norm: Norm,
        momentum: float,
        eps: float,
    ) -> Tensor:
        """The output."""
        ctx.run, ctx.how = chosen(x), (norm, eps)
        output, mean, invvar = ctx.run.forward(x, norm, running_mean, running_var, weight, bias, momentum, eps)
        ctx.save_for_backward(x, mean, invvar, weight, bias)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, weight and bias."""
        return *gradients(ctx, grad_output, ctx.run.backward), *[None] * 5


def gradients(ctx: Any, grad_output: Tensor, once: Callable[..., Gradients]) -> Gradients:
    """Those of x, weight and bias; `once` computes them where they need not be differentiated themselves.

    ctx has saved x, mean, invvar, weight and bias, and norm and eps as `ctx.how`.
    """
    x, mean, invvar, weight, bias = ctx.saved_tensors
    norm, eps = ctx.how
    if torch.is_grad_enabled():
        once = vectorised.backward
        if norm.own:  # so that the gradient knows how they depend on x
            mean, invvar = vectorised.statistics(x, norm, eps)
    return once(grad_output, x, mean, invvar, norm, weight, bias)
