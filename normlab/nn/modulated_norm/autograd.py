"""LayerNorm modulated per sample as one autograd function: the tensors that it saves, and its derivatives.

It saves x, its statistics, scale and shift. There is no memory_efficient mode: x̂ cannot be recomputed from the output
where 1 + scale is near 0, and a network computes scale from each sample, so it may have any value.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines
from normlab.nn.modulated_norm import launched, vectorised
from normlab.nn.modulated_norm.vectorised import ModulatedSaved
from normlab.nn.private import backward_form, direct_apply
from normlab.nn.shapes import Parameter

chosen = engines.chooser(launched, vectorised)


class ModulatedNorm(torch.autograd.Function):
    """Compute apply(x, scale, shift, eps) -> output and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        """Return the output."""
        ctx.engine, ctx.eps = chosen(x), eps
        output, mean, invvar = ctx.engine.forward(x, scale, shift, eps)
        ctx.save_for_backward(x, mean, invvar, scale, shift)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Parameter, ...]:
        """Return the gradients of x, scale and shift."""
        return *gradients(ctx, grad_output, ctx.engine.backward), None


apply = direct_apply(ModulatedNorm)


def gradients(ctx: Any, grad_output: Tensor, backward: Callable[..., Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, scale and shift.

    `backward` computes them, unless PyTorch has to see an operator or single operations (`backward_form`).
    ctx has `eps` and has saved a `ModulatedSaved`.
    """
    saved = ModulatedSaved(*ctx.saved_tensors)
    form = backward_form(grad_output)
    if form == "operations":
        return vectorised.composed_backward(grad_output, saved, ctx.eps)
    return (by_operator if form == "operator" else backward)(grad_output, saved)


def by_operator(grad_output: Tensor, saved: ModulatedSaved) -> tuple[Tensor, Tensor, Tensor]:
    """Return (grad_x, grad_scale, grad_shift) by one operator, for a graph."""
    return torch.ops.normlab.modulated_norm_backward(grad_output, *saved)
