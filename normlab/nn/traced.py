"""A norm over rows in a graph of torch.compile by its formulas, so that the compiler fuses it with its neighbours.

An operator is one kernel, and the compiler cannot put a neighbour into it: the sum of the gradients of a query's, a
key's and a value's projection, say, is written to memory by one kernel and read again by the norm's. Formulas have no
such border. They are those of `normlab.nn.formulas`, in accumulator precision, and the compiler decides the order of
their sums: bits differ from the kernels', and may depend on the number of rows.

Called by `normlab.nn.custom` and `normlab.nn.add_norm.functional` in graphs inside of `fused_by_compiler`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from normlab.nn.formulas import accumulator, composed_gradients, normalised_from_input, output_dtype, statistics, to
from normlab.nn.shapes import How, MemoryEfficient, Parameter, Saved, Shape

_wanted = False  # no ContextVar: Dynamo of PyTorch 2.13 cannot read one


@contextmanager
def fused_by_compiler() -> Iterator[None]:
    """Give torch.compile the formulas of layer and RMS norms in place of kernels, for the length of a `with` block.

    The block must hold the calls of the compiled model, because the first call compiles it. It holds in all threads,
    like torch.backends' switches. memory_efficient=True makes the backward start from the output, as without the block.
    With "exact" the backward starts from the input: a graph cannot count the columns at risk.

    >>> norm = torch.compile(torch.nn.RMSNorm(8), backend="eager")
    >>> with fused_by_compiler():
    ...     norm(torch.ones(2, 8)).shape
    torch.Size([2, 8])
    """
    global _wanted
    before, _wanted = _wanted, True
    try:
        yield
    finally:
        _wanted = before


def wanted() -> bool:
    """Return True if a graph that is compiled now gets formulas."""
    return _wanted and torch.compiler.is_compiling()


def norm(
    x: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    offset: float = 0.0,
) -> Tensor:
    """Return the output of a norm. offset: gamma is weight + offset."""
    return TracedNorm.apply(x, shape, weight, bias, eps, rms, memory_efficient is True, offset)


class TracedNorm(torch.autograd.Function):
    """apply(x, shape, weight, bias, eps, rms, memory_efficient, offset) -> output."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shape: Shape,
        weight: Parameter,
        bias: Parameter,
        eps: float,
        rms: bool,
        memory_efficient: bool,
        offset: float,
    ) -> Tensor:
        """Return the output."""
        wide = accumulator(x.dtype)
        mean, invvar = statistics(to(x, wide), shape, eps, rms)
        output = normalised_from_input(to(x, wide), mean, invvar)
        if weight is not None:
            output = output * (to(weight, wide) + offset)
        if bias is not None:
            output = output + to(bias, wide)
        output = to(output, output_dtype(x, weight, bias))
        ctx.save_for_backward(
            output if memory_efficient else x, invvar, weight, bias, None if memory_efficient else mean
        )
        ctx.how, ctx.offset = How(x.dtype, shape, eps, rms, memory_efficient), offset
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Parameter, ...]:
        """Return the gradients of x, weight and bias."""
        tensor, invvar, weight, bias, mean = ctx.saved_tensors
        gamma = None if weight is None else to(weight, invvar.dtype) + ctx.offset
        saved = Saved(tensor, invvar, gamma, to(bias, invvar.dtype), None, None, mean)
        grad_input, grad_weight, grad_bias = composed_gradients(grad_output, saved, ctx.how)
        affine = (
            None if weight is None or grad_weight is None else to(grad_weight, weight.dtype),
            None if bias is None or grad_bias is None else to(grad_bias, bias.dtype),
        )
        return to(grad_input, ctx.how.dtype), None, *affine, *[None] * 4
