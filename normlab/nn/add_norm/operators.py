"""Norms of x + residual as PyTorch operators, `torch.ops.normlab.add_norm` and its backward, for graphs.

Called by `normlab.nn.add_norm.functional` as `normlab.nn.custom` is for the plain norms. An operator has a fixed number
of results: RMSNorm's mean, and new_residual of a norm without a residual, are tensors of shape (0,).
"""

from typing import Any

import torch
from torch import Tensor

from normlab.nn.add_norm.autograd import by_operator, chosen, gradients
from normlab.nn.add_norm.how import AddHow
from normlab.nn.formulas import accumulator, empty_gradients, output_dtype, present
from normlab.nn.shapes import Parameter, Saved


def apply(x: Tensor, residual: Parameter, weight: Parameter, bias: Parameter, how: AddHow) -> tuple[Tensor, Tensor]:
    """Return (output, new_residual), by the operator."""
    output, new_residual, *_ = torch.ops.normlab.add_norm(x, residual, weight, bias, *how)
    return output, x if residual is None else new_residual


@torch.library.custom_op("normlab::add_norm", mutates_args=())
def add_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    offset: float,
    memory_efficient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (output, new_residual, mean, invvar)."""
    how = AddHow(eps, rms, offset, memory_efficient)
    output, new_residual, mean, invvar = chosen(x).forward(x, residual, weight, bias, how)
    leading = x.shape[:-1]
    return (
        output,
        x.new_empty(0) if residual is None else new_residual,
        invvar.new_empty(0) if mean is None else mean.reshape(leading),
        invvar.reshape(leading),
    )


@torch.library.custom_op("normlab::add_norm_backward", mutates_args=())
def add_norm_backward(
    grad_output: Tensor,
    grad_residual: Tensor | None,
    saved: Tensor,
    mean: Tensor | None,
    invvar: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    offset: float,
    memory_efficient: bool,
    residual_dtype: torch.dtype,
) -> list[Tensor]:
    """Return the gradient of x and the residual, then the gradients of weight and bias, without absent ones."""
    tensors, how = Saved(saved, invvar, weight, bias, mean=mean), AddHow(eps, rms, offset, memory_efficient)
    return present(chosen(saved).backward(grad_output, grad_residual, tensors, how, residual_dtype))


@add_norm.register_fake
def _(x, residual, weight, bias, eps, rms, offset, memory_efficient):
    like = x if residual is None else residual
    invvar = x.new_empty(x.shape[:-1], dtype=accumulator(like.dtype))
    return (
        x.new_empty(x.shape, dtype=output_dtype(like, weight, bias)),
        x.new_empty(0) if residual is None else x.new_empty(x.shape, dtype=residual.dtype),
        invvar.new_empty(0) if rms else torch.empty_like(invvar),
        invvar,
    )


@add_norm_backward.register_fake
def _(grad_output, grad_residual, saved, mean, invvar, weight, bias, eps, rms, offset, memory_efficient, dtype):
    return [saved.new_empty(saved.shape, dtype=dtype), *empty_gradients(weight, bias)]


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, residual, weight, bias, *how = inputs
    result, new_residual, mean, invvar = output
    ctx.how = AddHow(*how)
    ctx.set_materialize_grads(False)
    normalised = x if residual is None else new_residual
    ctx.dtype = normalised.dtype
    if ctx.how.memory_efficient:  # a second derivative reaches x through invvar
        ctx.mark_non_differentiable(mean)
        ctx.save_for_backward(result, invvar, weight, bias, None)
    else:
        ctx.mark_non_differentiable(mean, invvar)
        ctx.save_for_backward(normalised, invvar, weight, bias, None if ctx.how.rms else mean)


def _backward(
    ctx: Any, grad_output: Parameter, grad_residual: Parameter, _: Any, grad_invvar: Parameter
) -> tuple[Parameter, ...]:
    return *gradients(ctx, grad_output, grad_residual, grad_invvar, by_operator), *[None] * 4


add_norm.register_autograd(_backward, setup_context=_save)
