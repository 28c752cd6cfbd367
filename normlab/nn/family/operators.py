"""The family as PyTorch operators: `torch.ops.normlab.family_norm` and its backward, one each for all norms.

Called by `normlab.nn.family.functional`, for the graphs of torch.compile and torch.export. An operator with a gradient
must not change its arguments, so the updated running statistics are a result. `apply` copies them to the caller's
tensors, and the graph holds these copies. An operator's schema has no tuples, so an operator takes the fields of `Norm`
and `Given` one by one.
"""

from typing import Any

import torch
from torch import Tensor

from normlab.nn.family.autograd import by_operator, chosen, gradients
from normlab.nn.family.norms import Given, Norm
from normlab.nn.formulas import accumulator, empty_gradients, present


def apply(norm: Norm, given: Given) -> Tensor:
    """Return the output of a norm, by its operator. With norm.own the running statistics are updated in place."""
    output, _, _, updated = torch.ops.normlab.family_norm(*norm, *given)
    if pair := _updated(norm.own, given.running_mean, given.running_var):
        for number, one in enumerate(pair):
            one.detach().copy_(updated[number])
    return output


def _updated(own: bool, mean: Tensor | None, variance: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return the running statistics if a forward updates them: it has both, and normalises by the batch's own ones."""
    return (mean, variance) if own and mean is not None and variance is not None else None


@torch.library.custom_op("normlab::family_norm", mutates_args=())
def family_norm(
    kind: str,
    groups: int | None,
    own: bool,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar, running). running: (2, C), the updated mean and variance, or (0, C) if none."""
    running = x.new_empty((0, x.shape[1]))
    if pair := _updated(own, running_mean, running_var):
        running = torch.stack(pair)
        running_mean, running_var = running
    given = Given(x, running_mean, running_var, weight, bias, momentum, eps)
    return *chosen(x).forward(Norm(kind, groups, own), given), running


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
    """Return grad_input, then the gradients of weight and bias, without absent ones."""
    return present(chosen(x).backward(grad_output, x, mean, invvar, Norm(kind, groups, own), weight, bias))


@family_norm.register_fake
def _(kind, groups, own, x, running_mean, running_var, weight, bias, momentum, eps):
    norm = Norm(kind, groups, own)
    shape, dtype = norm.statistics_shape(x), accumulator(x.dtype)
    mean, invvar = (x.new_empty(shape, dtype=dtype) for _ in range(2))
    pair = _updated(own, running_mean, running_var)
    running = pair[0].new_empty((2, x.shape[1])) if pair else x.new_empty((0, x.shape[1]))
    return torch.empty_like(x, memory_format=norm.output_layout(x)), mean, invvar, running


@family_norm_backward.register_fake
def _(grad_output, x, mean, invvar, kind, groups, own, weight, bias):
    grad_input = torch.empty_like(x, memory_format=Norm(kind, groups, own).layout(x))
    return [grad_input, *empty_gradients(weight, bias)]


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    kind, groups, own, x, _, _, weight, bias, _, eps = inputs
    _, mean, invvar, running = output
    ctx.mark_non_differentiable(mean, invvar, running)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, mean, invvar, weight, bias)
    ctx.how = Norm(kind, groups, own), eps


def _backward(ctx: Any, grad_output: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return (None,) * 10
    grad_input, *affine = gradients(ctx, grad_output, by_operator)
    return *[None] * 3, grad_input, None, None, *affine, None, None


family_norm.register_autograd(_backward, setup_context=_save)
