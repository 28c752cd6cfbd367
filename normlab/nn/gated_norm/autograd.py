"""RMSNorm with a gate as one autograd function: the tensors that it saves, and its first and second derivatives.

Every result of the forward that the backward needs is an output and saved as one, as in `normlab.nn.autograd`.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines
from normlab.nn.gated_norm import launched, vectorised
from normlab.nn.gated_norm.how import GateHow, GateSaved
from normlab.nn.private import direct_apply, onlooker
from normlab.nn.shapes import Parameter


def chosen(x: Tensor) -> ModuleType:
    """Return the engine that computes norms of this tensor now."""
    return launched if engines.by_kernels(x) else vectorised


class GatedNorm(torch.autograd.Function):
    """apply(x, gate, weight, how) -> (output, and invvar if it is saved)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Parameter, how: GateHow) -> tuple[Tensor, ...]:
        """Return the results."""
        ctx.run, ctx.how = chosen(x), how
        output, invvar = ctx.run.forward(x, gate, weight, how)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output if how.memory_efficient else x, gate, invvar, weight)
        return (output, invvar) if how.memory_efficient else (output,)

    @staticmethod
    def backward(ctx: Any, grad_output: Parameter, grad_invvar: Parameter = None) -> tuple[Parameter, ...]:
        """Return the gradients of x, the gate and the weight."""
        return *gradients(ctx, grad_output, grad_invvar, ctx.run.backward), None


apply = direct_apply(GatedNorm)


def gradients(
    ctx: Any, grad_output: Parameter, grad_invvar: Parameter, once: Callable[..., Any]
) -> tuple[Parameter, Parameter, Parameter]:
    """Return the gradients of x, the gate and the weight, by `once` unless PyTorch has to see more of them.

    ctx has saved a `GateSaved`, and it has `how`.
    """
    saved = GateSaved(*ctx.saved_tensors)
    looks_on = "all" if grad_output is None or grad_invvar is not None else onlooker(grad_output)
    if looks_on == "all":
        return vectorised.composed_backward(grad_output, grad_invvar, saved, ctx.how)
    return (by_operator if looks_on == "graph" else once)(grad_output, saved, ctx.how)  # type: ignore[arg-type]


def by_operator(grad_output: Tensor, saved: GateSaved, how: GateHow) -> tuple[Tensor, Tensor, Parameter]:
    """Return (grad_x, grad_gate, grad_weight) by one operator, for a graph."""
    found = torch.ops.normlab.gated_norm_backward(grad_output, *saved, *how)
    return found[0], found[1], None if saved.weight is None else found[2]
