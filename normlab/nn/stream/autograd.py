"""A norm in the residual stream as an autograd function that returns the stream beside the output.

With a residual the stream is x + residual. Without one it is x. The backward then gets the gradient of the stream past
the norm, and one kernel adds it to the norm's own gradient. Otherwise PyTorch would add the two in a pass over three
matrices.
"""

from typing import Any

import torch
from torch import Tensor

from normlab.nn.add_norm.autograd import chosen, gradients
from normlab.nn.add_norm.how import AddHow
from normlab.nn.private import direct_apply
from normlab.nn.shapes import MemoryEfficient, Owners, Parameter
from normlab.nn.stream.saving import keeps_output, saved


class StreamNorm(torch.autograd.Function):
    """Compute apply(x, residual, weight, bias, how, mode, owners, past) -> (output, stream, and invvar if it is saved).

    past: False returns None in place of the stream, for a norm whose caller does not use the stream.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Parameter,
        weight: Parameter,
        bias: Parameter,
        how: AddHow,
        mode: MemoryEfficient,
        owners: Owners,
        past: bool,
    ) -> tuple[Parameter, ...]:
        """Return the results."""
        ctx.engine = chosen(x)
        output, stream, mean, invvar = ctx.engine.forward(x, residual, weight, bias, how)
        keeps = keeps_output(mode, invvar, output, (weight, bias), owners, how)
        ctx.set_materialize_grads(False)
        ctx.how, ctx.dtype, ctx.past = how._replace(memory_efficient=keeps), stream.dtype, past
        tensor, invvar, mean = saved(keeps, x, residual, (output, stream, mean, invvar))
        ctx.save_for_backward(tensor, invvar, weight, bias, mean)
        returned = None if not past else x.view_as(x) if residual is None else stream
        return (output, returned, invvar) if keeps else (output, returned)

    @staticmethod
    def backward(
        ctx: Any, grad_output: Parameter, grad_stream: Parameter, grad_invvar: Parameter = None
    ) -> tuple[Parameter, ...]:
        """Return the gradients of x, the residual, weight and bias."""
        return *gradients(ctx, grad_output, grad_stream, grad_invvar, ctx.engine.backward), None, None, None, None


apply = direct_apply(StreamNorm)
