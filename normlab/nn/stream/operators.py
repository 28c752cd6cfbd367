"""A norm in the residual stream in graphs of torch.compile: an autograd function around operators.

The operators are those of `normlab.nn.add_norm`. The mode "exact" decides when the graph runs which tensor is kept. Its
operator therefore returns a handle (`normlab.nn.custom.hold`), with a copy of the stream if the backward needs it.
"""

from typing import Any

import torch
from torch import Tensor

from normlab.nn.add_norm.autograd import chosen
from normlab.nn.add_norm.how import AddHow
from normlab.nn.add_norm.saving import keeps_output
from normlab.nn.custom import held, hold
from normlab.nn.formulas import accumulator, empty_gradients, output_dtype, present, with_absent
from normlab.nn.shapes import MemoryEfficient, Parameter, Saved


@torch.library.custom_op("normlab::stream_norm_held", mutates_args=())
def stream_norm_held(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    own_weight: Tensor | None,
    own_bias: Tensor | None,
    eps: float,
    rms: bool,
    offset: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (output, stream, invvar, handle). The stream is empty without a residual, because it is x then.

    own_weight, own_bias: the module's, where they differ from weight and bias, which may be casts.
    """
    owners = weight if own_weight is None else own_weight, bias if own_bias is None else own_bias
    how = AddHow(eps, rms, offset, "exact")
    output, stream, mean, invvar = chosen(x).forward(x, residual, weight, bias, how)
    keeps = keeps_output(how, invvar, output, (weight, bias), owners)
    leading = x.shape[:-1]
    mean = None if mean is None else mean.reshape(leading)
    # a copy, because Inductor writes into an operator's arguments and results once the graph does not use them any more
    handle = hold(None if keeps else (stream.clone(), mean))
    return output, x.new_empty(0) if residual is None else stream, invvar.reshape(leading), handle


@torch.library.custom_op("normlab::stream_norm_held_backward", mutates_args=())
def stream_norm_held_backward(
    grad_output: Tensor,
    grad_stream: Tensor | None,
    output: Tensor,
    invvar: Tensor,
    handle: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    offset: float,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Return the gradient of x and the residual, then the gradients of weight and bias, without absent ones.

    Raises:
        RuntimeError: the handle is a copy that hooks for saved tensors have made.
    """
    kept = held(handle, "stream")
    tensor, mean = (output, None) if kept is None else kept
    tensors, how = Saved(tensor, invvar, weight, bias, mean=mean), AddHow(eps, rms, offset, kept is None)
    return present(chosen(tensor).backward(grad_output, grad_stream, tensors, how, dtype))


@stream_norm_held.register_fake
def _(x, residual, weight, bias, own_weight, own_bias, eps, rms, offset):
    like = x if residual is None else residual
    output = x.new_empty(x.shape, dtype=output_dtype(like, weight, bias))
    stream = x.new_empty(0) if residual is None else x.new_empty(x.shape, dtype=residual.dtype)
    invvar = x.new_empty(x.shape[:-1], dtype=accumulator(like.dtype))
    return output, stream, invvar, x.new_empty(1, dtype=torch.float32, device="cpu")


@stream_norm_held_backward.register_fake
def _(grad_output, grad_stream, output, invvar, handle, weight, bias, eps, rms, offset, dtype):
    return [output.new_empty(output.shape, dtype=dtype), *empty_gradients(weight, bias)]


class StreamNormInGraph(torch.autograd.Function):
    """apply(x, residual, weight, bias, own_weight, own_bias, eps, rms, offset, mode) -> (output, stream)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Parameter,
        weight: Parameter,
        bias: Parameter,
        own_weight: Parameter,
        own_bias: Parameter,
        eps: float,
        rms: bool,
        offset: float,
        mode: MemoryEfficient,
    ) -> tuple[Tensor, Tensor]:
        """Return (output, stream)."""
        if mode == "exact":
            output, stream, invvar, extra = torch.ops.normlab.stream_norm_held(
                x, residual, weight, bias, own_weight, own_bias, eps, rms, offset
            )
        else:
            output, stream, extra, invvar = torch.ops.normlab.add_norm(
                x, residual, weight, bias, eps, rms, offset, mode
            )
        stream = x.view_as(x) if residual is None else stream
        kept = output if mode else stream
        ctx.save_for_backward(kept, invvar, extra, weight, bias)
        ctx.options, ctx.mode, ctx.dtypes = (eps, rms, offset), mode, (x.dtype, stream.dtype)
        ctx.has_residual = residual is not None
        return output, stream

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_stream: Tensor) -> tuple[Parameter, ...]:
        """Return the gradients of x, the residual, weight and bias."""
        kept, invvar, extra, weight, bias = ctx.saved_tensors
        of_x, of_stream = ctx.dtypes
        if ctx.mode == "exact":
            found = torch.ops.normlab.stream_norm_held_backward(
                grad_output, grad_stream, kept, invvar, extra, weight, bias, *ctx.options, of_stream
            )
        else:
            mean = None if ctx.options[1] or ctx.mode else extra
            found = torch.ops.normlab.add_norm_backward(
                grad_output, grad_stream, kept, mean, invvar, weight, bias, *ctx.options, ctx.mode, of_stream
            )
        grad, *affine = with_absent(found, weight, bias)
        return grad.to(of_x), grad if ctx.has_residual else None, *affine, *[None] * 6
