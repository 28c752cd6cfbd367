"""A norm by PyTorch's own operations, in accumulator precision; rounded once.

CPU tensors run it, and so do second derivatives on every device. It returns statistics whose normalised dimensions are
kept as 1, so that they broadcast; it also takes the statistics of `normlab.nn.launched`, which leave these dimensions
out.
"""

from math import prod

import torch
from torch import Tensor

from normlab.kernels.exact.risk import RATIO
from normlab.kernels.exact.spread import LARGE, SMALL
from normlab.nn import blocks
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
from normlab.nn.private import backward_form, in_a_graph, results_are_kept
from normlab.nn.shapes import Gradients, How, Owners, Parameter, Saved, Shape, Statistic


def forward(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool
) -> tuple[Tensor, Statistic, Tensor]:
    """Return (output, mean, invvar), where output = x̂ gamma + beta.

    x: (*leading, *shape), any strides; weight, bias: shape, or None. output: the parameters' dtype, or x's without
    parameters; mean: None for rms.
    """
    wide, dtype = accumulator(x.dtype), output_dtype(x, weight, bias)
    gamma, beta = to(weight, wide), to(bias, wide)
    in_blocks = x.device.type == "cpu" and x.numel() and (rms or x.dtype != wide or dtype != wide)
    if in_blocks and not results_are_kept():  # blocks write into their results
        if x.dtype == dtype and not rms:
            ones = torch.ones(shape, dtype=wide, device=x.device)  # float32 parameters get float32 statistics from ATen
            found = torch.native_layer_norm(x, shape, ones if gamma is None else gamma, beta, eps)
            if blocks.spread_out(*found[1:], eps):
                return found
        return blocks.forward(x, shape, gamma, beta, eps, rms, dtype)
    if rms:
        _, invvar = statistics(to(x, wide), shape, eps, rms)
        return to(normalised_from_input(x, None, invvar) * (1 if gamma is None else gamma), dtype), None, invvar
    output, mean, invvar = torch.native_layer_norm(to(x, wide), shape, gamma, beta, eps)
    return to(output, dtype), mean, invvar


def composed(x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool) -> Tensor:
    """Return the output alone, by operations that every transform of torch.func knows."""
    wide = accumulator(x.dtype)
    values = x.to(wide)
    xhat = normalised_from_input(values, *statistics(values, shape, eps, rms))
    return affine(xhat, weight, bias).to(output_dtype(x, weight, bias))


def columns_at_risk(
    invvar: Tensor, output: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, owners: Owners
) -> Tensor:
    """Return the numbers of the columns at risk, int32; see `normlab.kernels.exact.risk`. owners is not used."""
    wide, device = invvar.dtype, invvar.device
    risky = torch.zeros(shape, dtype=torch.bool, device=device)
    if (weight is not None or bias is not None) and invvar.numel():
        spread = _spread(invvar, eps)
        size = torch.ones((), dtype=wide, device=device) if weight is None else weight.to(wide).abs()
        if weight is not None:
            risky = (size < eps) | (size * spread < torch.finfo(output.dtype).smallest_normal)
        if bias is not None:
            risky = risky | (bias.to(wide).abs() > RATIO * (size * spread))
    return risky.flatten().nonzero().flatten().to(torch.int32)


def _spread(invvar: Tensor, eps: float) -> Tensor:
    """Return the spread of x̂; see `normlab.kernels.exact.spread`."""
    squares = 1 - eps * invvar.square()
    square = squares[squares >= -1].clamp(min=0).mean()
    return torch.where(square <= LARGE, square.clamp(min=SMALL).sqrt(), 1)


def keep(
    x: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    columns: Tensor,
) -> Tensor:
    """Return x̂ of the given columns, (n1, count), in the output's dtype."""
    rows = invvar.numel()
    values = x.reshape(rows, prod(shape))[:, columns.long()].to(invvar.dtype)
    xhat = normalised_from_input(values, None if mean is None else mean.reshape(rows, 1), invvar.reshape(rows, 1))
    return xhat.to(output_dtype(x, weight, bias)).contiguous()


def backward(grad_output: Tensor, saved: Saved, how: How) -> Gradients:
    """Return (grad_input, grad_weight, grad_bias) as `normlab.layer_norm_backward`; None for an absent parameter's."""
    tensor, invvar, weight, bias, *_, mean = saved
    wide = saved._replace(weight=to(weight, invvar.dtype), bias=to(bias, invvar.dtype))
    once = backward_form(grad_output) is None and not in_a_graph(tensor)
    if not once or tensor.device.type != "cpu" or not tensor.numel():
        grad_input, grad_weight, grad_bias = composed_gradients(grad_output, wide, how)
        found = grad_input.contiguous(), grad_weight, grad_bias  # contiguous as by the other branches
    elif blocks.by_one_operation(grad_output, tensor, mean, invvar, how.eps, how.memory_efficient):
        found = blocks.fused(grad_output, tensor, mean, invvar, how.shape, wide.weight, wide.bias)
    else:
        found = blocks.gradients(grad_output, wide, how)
    return in_dtypes(found, how.dtype, weight, bias)
