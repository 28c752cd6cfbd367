"""RMSNorm with a gate as PyTorch operators, `torch.ops.normlab.gated_norm` and its backward, for graphs.

Called by `normlab.nn.gated_norm.functional` as `normlab.nn.custom` is for the plain norms.
"""

from typing import Any

import torch
from torch import Tensor

from normlab.nn.formulas import accumulator, output_dtype, present
from normlab.nn.gated_norm.autograd import by_operator, chosen, gradients
from normlab.nn.gated_norm.vectorised import GateHow, GateSaved
from normlab.nn.shapes import Parameter


def apply(x: Tensor, gate: Tensor, weight: Parameter, how: GateHow) -> Tensor:
    """Return the output, by the operator."""
    return torch.ops.normlab.gated_norm(x, gate, weight, *how)[0]


@torch.library.custom_op("normlab::gated_norm", mutates_args=())
def gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor | None, eps: float, norm_before_gate: bool, memory_efficient: bool
) -> tuple[Tensor, Tensor]:
    """Return (output, invvar)."""
    return chosen(x).forward(x, gate, weight, GateHow(eps, norm_before_gate, memory_efficient))


@torch.library.custom_op("normlab::gated_norm_backward", mutates_args=())
def gated_norm_backward(
    grad_output: Tensor,
    saved: Tensor,
    gate: Tensor,
    invvar: Tensor,
    weight: Tensor | None,
    eps: float,
    norm_before_gate: bool,
    memory_efficient: bool,
) -> list[Tensor]:
    """Return the gradients of x and of the gate, then that of the weight if it is given."""
    tensors, how = GateSaved(saved, gate, invvar, weight), GateHow(eps, norm_before_gate, memory_efficient)
    return present(chosen(saved).backward(grad_output, tensors, how))


@gated_norm.register_fake
def _(x, gate, weight, eps, norm_before_gate, memory_efficient):
    return (
        x.new_empty(x.shape, dtype=output_dtype(x, weight, None)),
        x.new_empty(x.shape[:-1], dtype=accumulator(x.dtype)),
    )


@gated_norm_backward.register_fake
def _(grad_output, saved, gate, invvar, weight, eps, norm_before_gate, memory_efficient):
    affine = [] if weight is None else [weight.new_empty(weight.shape)]
    return [gate.new_empty(gate.shape), gate.new_empty(gate.shape), *affine]


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, gate, weight, *how = inputs
    result, invvar = output
    ctx.how = GateHow(*how)
    ctx.set_materialize_grads(False)
    if not ctx.how.memory_efficient:  # else a second derivative reaches x through invvar
        ctx.mark_non_differentiable(invvar)
    ctx.save_for_backward(result if ctx.how.memory_efficient else x, gate, invvar, weight)


def _backward(ctx: Any, grad_output: Parameter, grad_invvar: Parameter) -> tuple[Parameter, ...]:
    return *gradients(ctx, grad_output, grad_invvar, by_operator), *[None] * 3


gated_norm.register_autograd(_backward, setup_context=_save)
