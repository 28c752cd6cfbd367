"""LayerNorm modulated per sample as one autograd function: the tensors that it saves, and its derivatives.

It saves x, its statistics, scale and shift; all but the statistics live anyway. x̂ cannot be recomputed from the output
where 1 + scale is near 0, and scale is whatever a network makes of a sample, so there is no memory_efficient mode.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines
from normlab.nn.modulated_norm import launched, vectorised
from normlab.nn.modulated_norm.vectorised import ModulatedSaved
from normlab.nn.private import direct_apply, onlooker
from normlab.nn.shapes import Parameter


def chosen(x: Tensor) -> ModuleType:
    """Return the engine that computes norms of this tensor now."""
    return launched if engines.by_kernels(x) else vectorised


class ModulatedNorm(torch.autograd.Function):
    """apply(x, scale, shift, eps) -> output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        """Return the output."""
        ctx.run, ctx.eps = chosen(x), eps
        output, mean, invvar = ctx.run.forward(x, scale, shift, eps)
        ctx.save_for_backward(x, mean, invvar, scale, shift)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Parameter, ...]:
        """Return the gradients of x, scale and shift."""
        return *gradients(ctx, grad_output, ctx.run.backward), None


apply = direct_apply(ModulatedNorm)


def gradients(ctx: Any, grad_output: Tensor, once: Callable[..., Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, scale and shift, by `once` unless PyTorch has to see more of them.

    ctx has saved a `ModulatedSaved`, and it has `eps`.
    """
    saved = ModulatedSaved(*ctx.saved_tensors)
    looks_on = onlooker(grad_output)
    if looks_on == "all":
        return vectorised.composed_backward(grad_output, saved, ctx.eps)
    return (by_operator if looks_on == "graph" else once)(grad_output, saved)


def by_operator(grad_output: Tensor, saved: ModulatedSaved) -> tuple[Tensor, Tensor, Tensor]:
    """Return (grad_x, grad_scale, grad_shift) by one operator, for a graph."""
    return torch.ops.normlab.modulated_norm_backward(grad_output, *saved)
