"""Norms of x + residual as one autograd function: the tensors that it saves, and its first and second derivatives.

A gradient arrives at the output and one at new_residual. One kernel adds both up, and the result is the gradient of x
and of the residual. A norm without a residual may also return x: its backward then adds the gradient of x past the norm
to the norm's own, which PyTorch would do in a pass over three matrices. Every result of the forward that the backward
needs is an output and saved as one, as in `normlab.nn.autograd`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines
from normlab.nn.add_norm import launched, vectorised
from normlab.nn.add_norm.how import AddHow
from normlab.nn.add_norm.saving import keeps_output
from normlab.nn.formulas import with_absent
from normlab.nn.private import backward_form, direct_apply
from normlab.nn.shapes import Gradients, Owners, Parameter, Saved

chosen = engines.chooser(launched, vectorised)


class AddNorm(torch.autograd.Function):
    """Compute apply(x, residual, weight, bias, how, past, owners), and its gradients.

    It returns the output, then new_residual (x without a residual; None if `past` is False, because the caller does not
    use it), then invvar if the backward keeps the output. owners: the module's weight and bias, of which weight and
    bias may be casts; None for a public function's call, which is never in the mode "exact".
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Parameter,
        weight: Parameter,
        bias: Parameter,
        how: AddHow,
        past: bool,
        owners: Owners | None,
    ) -> tuple[Parameter, ...]:
        """Return the results."""
        ctx.engine = chosen(x)
        output, new_residual, mean, invvar = ctx.engine.forward(x, residual, weight, bias, how)
        keeps = keeps_output(how, invvar, output, (weight, bias), owners)
        ctx.set_materialize_grads(False)
        ctx.how, ctx.dtype = how._replace(memory_efficient=keeps), new_residual.dtype
        ctx.past = past and owners is not None  # `normlab.nn.stream.compare` counts the nodes of fused layers by it
        tensor, mean = (output, None) if keeps else (new_residual, mean)
        ctx.save_for_backward(tensor, invvar, weight, bias, mean)
        returned = None if not past else x.view_as(x) if residual is None else new_residual
        return (output, returned, invvar) if keeps else (output, returned)

    @staticmethod
    def backward(
        ctx: Any, grad_output: Parameter, grad_residual: Parameter, grad_invvar: Parameter = None
    ) -> tuple[Parameter, ...]:
        """Return the gradients of x, the residual, weight and bias."""
        return *gradients(ctx, grad_output, grad_residual, grad_invvar, ctx.engine.backward), None, None, None


apply = direct_apply(AddNorm)


def gradients(
    ctx: Any,
    grad_output: Parameter,
    grad_residual: Parameter,
    grad_invvar: Parameter,
    backward: Callable[..., Gradients],
) -> tuple[Parameter, Parameter, Parameter, Parameter]:
    """Return the gradients of x, the residual, weight and bias, by `backward` unless PyTorch has to see more.

    ctx has saved a `Saved` without kept columns, and it has `how` and the residual's dtype.
    """
    tensor, invvar, weight, bias, mean = ctx.saved_tensors
    saved, dtype = Saved(tensor, invvar, weight, bias, mean=mean), ctx.dtype
    form = "operations" if grad_output is None or grad_invvar is not None else backward_form(grad_output)
    if form != "operations" and grad_residual is not None and backward_form(grad_residual) == "operations":
        form = "operations"
    if form == "operations":
        found = vectorised.composed_backward(grad_output, grad_residual, grad_invvar, saved, ctx.how, dtype)
    else:
        function = by_operator if form == "operator" else backward
        found = function(grad_output, grad_residual, saved, ctx.how, dtype)  # type: ignore[arg-type]
    grad, grad_weight, grad_bias = found
    of_x, of_residual, *_ = ctx.needs_input_grad
    # one gradient for both; where x has another dtype, PyTorch rounds it
    return grad if of_x else None, grad if of_residual else None, grad_weight, grad_bias


def by_operator(grad_output: Tensor, grad_residual: Parameter, saved: Saved, how: AddHow, dtype: Any) -> Gradients:
    """Return (grad, grad_weight, grad_bias) by one operator, for a graph."""
    tensor, invvar, weight, bias, _, _, mean = saved
    found = torch.ops.normlab.add_norm_backward(
        grad_output, grad_residual, tensor, mean, invvar, weight, bias, *how, dtype
    )
    return with_absent(found, weight, bias)
