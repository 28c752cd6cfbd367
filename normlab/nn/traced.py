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

from normlab.nn.formulas import (
    accumulator,
    affine,
    composed_gradients,
    in_dtypes,
    normalised_from_input,
    output_dtype,
    statistics,
    to,
)
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
    if memory_efficient is True:
        return FromOutput.apply(x, shape, weight, bias, eps, rms, offset)
    return computed(x, shape, weight, bias, eps, rms, offset)[0]


def computed(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool, offset: float
) -> tuple[Tensor, Tensor]:
    """Return (output, invvar)."""
    values = to(x, accumulator(x.dtype))
    mean, invvar = statistics(values, shape, eps, rms)
    gamma = None if weight is None else to(weight, values.dtype) + offset
    output = affine(normalised_from_input(values, mean, invvar), gamma, to(bias, values.dtype))
    return to(output, output_dtype(x, weight, bias)), invvar


class FromOutput(torch.autograd.Function):
    """apply(x, shape, weight, bias, eps, rms, offset) -> output, with a backward that starts from the output.

    It has no second derivatives. AOTAutograd raises an error for any; a backend without it, such as "eager", does not.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool, offset: float
    ) -> Tensor:
        """Return the output."""
        output, invvar = computed(x, shape, weight, bias, eps, rms, offset)
        ctx.save_for_backward(output, invvar, weight, bias)
        ctx.how, ctx.offset = How(x.dtype, shape, eps, rms, True), offset
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Parameter, ...]:
        """Return the gradients of x, weight and bias."""
        output, invvar, weight, bias = ctx.saved_tensors
        gamma = None if weight is None else to(weight, invvar.dtype) + ctx.offset
        saved = Saved(output, invvar, gamma, to(bias, invvar.dtype))
        found = composed_gradients(grad_output, saved, ctx.how)
        grad_input, *affine = in_dtypes(found, ctx.how.dtype, weight, bias)
        return grad_input, None, *affine, *[None] * 3
