"""The family as PyTorch operators: `torch.ops.normlab.family_norm` and its backward, one each for all norms.

Called by `normlab.nn.family.functional`, eager and in graphs. An operator that has a gradient must change nothing in
place, so the updated running statistics are a result; the caller copies them to where they belong, which graphs know
how to keep. A first derivative runs where `normlab.nn.engines` says; with create_graph=True it is composed of
differentiable operations (`normlab.nn.family.vectorised`) on any device.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines
from normlab.nn.family import launched, vectorised
from normlab.nn.family.norms import Norm
from normlab.nn.shapes import Parameter


def chosen(x: Tensor) -> ModuleType:
    """The module that computes norms of this tensor now."""
    return launched if engines.by_kernels(x) else vectorised


def updates(norm: Norm, running_mean: Parameter) -> bool:
    """Are there running statistics that change?"""
    return norm.own and running_mean is not None


@torch.library.custom_op("normlab::family_norm", mutates_args=())
def family_norm(
    x: Tensor,
    kind: str,
    groups: int | None,
    own: bool,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(output, mean, invvar, running): running is (2, C), the updated mean and variance, or (0, C) where none are."""
    norm = Norm(kind, groups, own)
    running = x.new_empty((0, x.shape[1]))
    if updates(norm, running_mean):
        running = torch.stack((running_mean, running_var))  # type: ignore[arg-type]
        running_mean, running_var = running
    results = chosen(x).forward(x, norm, running_mean, running_var, weight, bias, momentum, eps)
    return *results, running


@torch.library.custom_op("normlab::family_norm_backward", mutates_args=())
def family_norm_backward(
    grad_output: Tensor,
    x: Tensor,
    mean: Tensor,
    invvar: Tensor,
    kind: str,
    groups: int | None,
    own: bool,
    weight: Tensor | None,
    bias: Tensor | None,
) -> list[Tensor]:
    """grad_input, and the gradients of weight and bias where they are given."""
    gradients = chosen(x).backward(grad_output, x, mean, invvar, Norm(kind, groups, own), weight, bias)
    return [gradient for gradient in gradients if gradient is not None]


@family_norm.register_fake
def _(x, kind, groups, own, running_mean, running_var, weight, bias, momentum, eps):
    norm = Norm(kind, groups, own)
    shape, dtype = norm.statistics_shape(x), vectorised.accumulator(x.dtype)
    mean, invvar = (x.new_empty(shape, dtype=dtype) for _ in range(2))
    like, count = (running_mean, 2) if updates(norm, running_mean) else (x, 0)
    return torch.empty_like(vectorised.dense(x)), mean, invvar, like.new_empty((count, x.shape[1]))


@family_norm_backward.register_fake
def _(grad_output, x, mean, invvar, kind, groups, own, weight, bias):
    gradients = [parameter.new_empty(parameter.shape) for parameter in (weight, bias) if parameter is not None]
    return [torch.empty_like(vectorised.dense(x)), *gradients]


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, kind, groups, own, _, _, weight, bias, _, eps = inputs
    _, mean, invvar, running = output
    ctx.mark_non_differentiable(mean, invvar, running)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, mean, invvar, weight, bias)
    ctx.how = Norm(kind, groups, own), eps


def _backward(ctx: Any, grad_output: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    x, mean, invvar, weight, bias = ctx.saved_tensors
    norm, eps = ctx.how
    gradients: list[Tensor | None] = [None] * 3
    if grad_output is not None and torch.is_grad_enabled():
        if norm.own:  # so that the gradient knows how they depend on x
            mean, invvar = vectorised.statistics(x, norm, eps)
        gradients = list(vectorised.backward(grad_output, x, mean, invvar, norm, weight, bias))
    elif grad_output is not None:
        found = torch.ops.normlab.family_norm_backward(grad_output, x, mean, invvar, *norm, weight, bias)
        gradients = [found.pop(0), *(None if parameter is None else found.pop(0) for parameter in (weight, bias))]
    grad_input, *affine = gradients
    return grad_input, *[None] * 5, *affine, None, None


family_norm.register_autograd(_backward, setup_context=_save)
