"""LayerNorm modulated per sample as PyTorch operators, `torch.ops.normlab.modulated_norm` and its backward, for graphs.

Called by `normlab.nn.modulated_norm.functional` as `normlab.nn.custom` is for the plain norms.
"""

from typing import Any

import torch
from torch import Tensor

from normlab.nn.formulas import accumulator
from normlab.nn.modulated_norm.autograd import by_operator, chosen, gradients
from normlab.nn.modulated_norm.vectorised import ModulatedSaved


def apply(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Return the output, by the operator."""
    return torch.ops.normlab.modulated_norm(x, scale, shift, eps)[0]


@torch.library.custom_op("normlab::modulated_norm", mutates_args=())
def modulated_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar)."""
    return chosen(x).forward(x, scale, shift, eps)


@torch.library.custom_op("normlab::modulated_norm_backward", mutates_args=())
def modulated_norm_backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, scale and shift."""
    return chosen(x).backward(grad_output, ModulatedSaved(x, mean, invvar, scale, shift))


@modulated_norm.register_fake
def _(x, scale, shift, eps):
    statistic = x.new_empty(x.shape[:-1], dtype=accumulator(x.dtype))
    return x.new_empty(x.shape, dtype=scale.dtype), statistic, torch.empty_like(statistic)


@modulated_norm_backward.register_fake
def _(grad_output, x, mean, invvar, scale, shift):
    return x.new_empty(x.shape), scale.new_empty(scale.shape), shift.new_empty(shift.shape)


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, scale, shift, ctx.eps = inputs
    _, mean, invvar = output
    ctx.mark_non_differentiable(mean, invvar)
    ctx.save_for_backward(x, mean, invvar, scale, shift)


def _backward(ctx: Any, grad_output: Tensor, *_: Any) -> tuple[Any, ...]:
    return *gradients(ctx, grad_output, by_operator), None


modulated_norm.register_autograd(_backward, setup_context=_save)
