"""The norms as PyTorch operators, `torch.ops.normlab.*`: what graphs hold, that torch.compile and torch.export make.

Called by `normlab.nn.functional`. Each computes what `normlab.nn.engines` chooses, knows its results' shapes without
computing (the fake implementations), and has its gradient registered. Statistics have the input's leading dimensions.
"""

import torch
from torch import Tensor

from normlab.nn import engines, vectorised
from normlab.nn.shapes import MemoryEfficient, Parameter, Shape


def norm(
    x: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    memory_efficient: MemoryEfficient,
    rms: bool,
) -> Tensor:
    """The output of a norm, by its operator."""
    recompute = memory_efficient is True  # "exact": the columns at risk are not known to a graph, so it keeps the input
    if rms:
        return torch.ops.normlab.rms_norm(x, shape, weight, eps, recompute)[0]
    return torch.ops.normlab.layer_norm(x, shape, weight, bias, eps, recompute)[0]


@torch.library.custom_op("normlab::layer_norm", mutates_args=())
def layer_norm(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    memory_efficient: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, mean, invvar)."""
    shape = tuple(normalized_shape)
    output, mean, invvar = engines.chosen(x).forward(x, shape, weight, bias, eps, False)
    leading = x.shape[: x.dim() - len(shape)]
    return output, mean.reshape(leading), invvar.reshape(leading)


@torch.library.custom_op("normlab::rms_norm", mutates_args=())
def rms_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float, memory_efficient: bool
) -> tuple[Tensor, Tensor]:
    """(output, invvar)."""
    shape = tuple(normalized_shape)
    output, _, invvar = engines.chosen(x).forward(x, shape, weight, None, eps, True)
    return output, invvar.reshape(x.shape[: x.dim() - len(shape)])


@torch.library.custom_op("normlab::norm_backward", mutates_args=())
def norm_backward(
    grad_output: Tensor,
    saved: Tensor,
    mean: Tensor | None,
    invvar: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    memory_efficient: bool,
    input_dtype: torch.dtype,
) -> list[Tensor]:
    """grad_input, and the gradients of weight and bias where they are given."""
    shape = tuple(normalized_shape)
    gradients = engines.chosen(saved).backward(
        grad_output, saved, mean, invvar, shape, weight, bias, eps, rms, memory_efficient, None, input_dtype
    )
    return [gradient for gradient in gradients if gradient is not None]


def _fake_forward(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    output = x.new_empty(x.shape, dtype=vectorised.output_dtype(x, weight, bias))
    leading = x.shape[: x.dim() - len(shape)]
    return output, x.new_empty(leading, dtype=vectorised.accumulator(x.dtype))


@layer_norm.register_fake
def _(x, normalized_shape, weight, bias, eps, memory_efficient):
    output, invvar = _fake_forward(x, normalized_shape, weight, bias)
    return output, torch.empty_like(invvar), invvar


@rms_norm.register_fake
def _(x, normalized_shape, weight, eps, memory_efficient):
    return _fake_forward(x, normalized_shape, weight, None)


@norm_backward.register_fake
def _(grad_output, saved, mean, invvar, normalized_shape, weight, bias, eps, rms, memory_efficient, input_dtype):
    gradients = [torch.empty_like(parameter) for parameter in (weight, bias) if parameter is not None]
    return [saved.new_empty(saved.shape, dtype=input_dtype), *gradients]


def _save(ctx, inputs, output):
    """What the backward needs, for both operators: their arguments differ by the bias, their results by the mean."""
    if len(inputs) == 6:
        x, shape, weight, bias, eps, memory_efficient = inputs
        result, mean, invvar = output
    else:
        (x, shape, weight, eps, memory_efficient), bias = inputs, None
        (result, invvar), mean = output, None
    ctx.set_materialize_grads(False)
    if memory_efficient:
        ctx.save_for_backward(result, weight, bias, None, invvar)
    else:
        ctx.save_for_backward(x, weight, bias, mean, invvar)
    ctx.how = shape, eps, len(inputs) == 5, memory_efficient, x.dtype


def _backward(ctx, grad_output, *_):
    saved, weight, bias, mean, invvar = ctx.saved_tensors
    shape, eps, rms, memory_efficient, dtype = ctx.how
    grad_input, grad_weight, grad_bias = None, None, None
    if grad_output is not None:
        grad_input, *parameters = torch.ops.normlab.norm_backward(
            grad_output, saved, mean, invvar, shape, weight, bias, eps, rms, memory_efficient, dtype
        )
        grad_weight = None if weight is None else parameters.pop(0)
        grad_bias = None if bias is None else parameters.pop(0)
    if rms:
        return grad_input, None, grad_weight, None, None
    return grad_input, None, grad_weight, grad_bias, None, None


layer_norm.register_autograd(_backward, setup_context=_save)
rms_norm.register_autograd(_backward, setup_context=_save)
