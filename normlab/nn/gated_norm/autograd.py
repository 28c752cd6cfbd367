"""RMSNorm with a gate as one autograd function: the tensors that it saves, and its first and second derivatives.

Every result of the forward that the backward needs is an output and saved as one, as in `normlab.nn.autograd`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines
from normlab.nn.gated_norm import launched, vectorised
from normlab.nn.gated_norm.vectorised import GateHow, GateSaved
from normlab.nn.private import backward_form, direct_apply
from normlab.nn.shapes import Parameter

chosen = engines.chooser(launched, vectorised)


class GatedNorm(torch.autograd.Function):
    """Compute apply(x, gate, weight, how) -> (output, and invvar if it is saved) and the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Parameter, how: GateHow) -> tuple[Tensor, ...]:
        """Return the results."""
        ctx.engine, ctx.how = chosen(x), how
        output, invvar = ctx.engine.forward(x, gate, weight, how)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output if how.memory_efficient else x, gate, invvar, weight)
        return (output, invvar) if how.memory_efficient else (output,)

    @staticmethod
    def backward(ctx: Any, grad_output: Parameter, grad_invvar: Parameter = None) -> tuple[Parameter, ...]:
        """Return the gradients of x, the gate and the weight."""
        return *gradients(ctx, grad_output, grad_invvar, ctx.engine.backward), None


apply = direct_apply(GatedNorm)


def gradients(
    ctx: Any, grad_output: Parameter, grad_invvar: Parameter, backward: Callable[..., Any]
) -> tuple[Parameter, Parameter, Parameter]:
    """Return the gradients of x, gate and weight, by `backward` unless PyTorch has to see operators or operations.

    ctx has saved a `GateSaved`, and it has `how`.
    """
    saved = GateSaved(*ctx.saved_tensors)
    form = "operations" if grad_output is None or grad_invvar is not None else backward_form(grad_output)
    if form == "operations":
        return vectorised.composed_backward(grad_output, grad_invvar, saved, ctx.how)
    return (by_operator if form == "operator" else backward)(grad_output, saved, ctx.how)  # type: ignore[arg-type]


def by_operator(grad_output: Tensor, saved: GateSaved, how: GateHow) -> tuple[Tensor, Tensor, Parameter]:
    """Return (grad_x, grad_gate, grad_weight) by one operator, for a graph."""
    found = torch.ops.normlab.gated_norm_backward(grad_output, *saved, *how)
    return found[0], found[1], None if saved.weight is None else found[2]
