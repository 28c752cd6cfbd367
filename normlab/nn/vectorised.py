"""A norm by PyTorch's own operations, in accumulator precision: float64 for float64, else float32; rounded once.

What CPU tensors run, and on every device what a second derivative runs: all of it is differentiable. The formulas are
those of `normlab.stages.recompute` and `normlab.stages.gradient`, over whole tensors. Statistics come with the
normalised dimensions kept as 1, so that they broadcast; those of `normlab.nn.launched` are welcome, too.
"""

from math import prod
from typing import overload

import torch
from torch import Tensor

from normlab.keeping import Kept
from normlab.kernels.exact.risk import RATIO
from normlab.kernels.exact.spread import LARGE, SMALL
from normlab.nn.private import in_a_graph
from normlab.nn.shapes import Gradients, MemoryEfficient, Owners, Parameter, Shape, Statistic


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums are done in, and statistics kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def inner(shape: Shape) -> tuple[int, ...]:
    """The dimensions that are normalised over, counted from the last."""
    return tuple(range(-len(shape), 0))


def outer(tensor: Tensor, shape: Shape) -> tuple[int, ...]:
    """The dimensions of the rows."""
    return tuple(range(tensor.dim() - len(shape)))


def statistics(x: Tensor, shape: Shape, eps: float, rms: bool) -> tuple[Statistic, Tensor]:
    """(mean, invvar) of the rows of x, which is in accumulator precision."""
    dims = inner(shape)
    if rms:
        return None, (x.square().mean(dims, keepdim=True) + eps).rsqrt()
    mean = x.mean(dims, keepdim=True)
    return mean, ((x - mean).square().mean(dims, keepdim=True) + eps).rsqrt()


def forward(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool
) -> tuple[Tensor, Statistic, Tensor]:
    """(output, mean, invvar): y = x̂ gamma + beta.

    x: (*leading, *shape), any strides; weight, bias: shape, or None. output: the parameters' dtype, x's without any;
    mean: None for rms.
    """
    wide = accumulator(x.dtype)
    gamma, beta = to(weight, wide), to(bias, wide)
    values = to(x, wide).contiguous()
    mean: Statistic
    if rms:
        mean, invvar = statistics(values, shape, eps, rms)
        output = values * invvar if gamma is None else values * invvar * gamma
    else:
        output, mean, invvar = torch.native_layer_norm(values, shape, gamma, beta, eps)
    return to(output, output_dtype(x, weight, bias)), mean, invvar


def composed(x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool) -> Tensor:
    """The output alone, by operations that every transform of torch.func knows."""
    wide = accumulator(x.dtype)
    values = x.to(wide)
    output = normalised_from_input(values, *statistics(values, shape, eps, rms))
    if weight is not None:
        output = output * weight
    if bias is not None:
        output = output + bias
    return output.to(output_dtype(x, weight, bias))


def columns_at_risk(
    invvar: Tensor, output: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, owners: Owners
) -> Tensor:
    """Return the numbers of the columns at risk, int32; see `normlab.kernels.exact.risk`. owners are of no use here."""
    wide, device = invvar.dtype, invvar.device
    risky = torch.zeros(shape, dtype=torch.bool, device=device)
    if (weight is not None or bias is not None) and invvar.numel():
        spread = _spread(invvar, eps)
        size = torch.ones((), dtype=wide, device=device) if weight is None else weight.to(wide).abs()
        if weight is not None:
            risky |= (size < eps) | (size * spread < torch.finfo(output.dtype).smallest_normal)
        if bias is not None:
            risky |= bias.to(wide).abs() > RATIO * (size * spread)
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
    """Return x̂ of these columns, (n1, count), in the output's dtype."""
    rows = invvar.numel()
    values = x.reshape(rows, prod(shape))[:, columns.long()].to(invvar.dtype)
    xhat = normalised_from_input(values, None if mean is None else mean.reshape(rows, 1), invvar.reshape(rows, 1))
    return xhat.to(output_dtype(x, weight, bias)).contiguous()


def output_dtype(x: Tensor, weight: Parameter, bias: Parameter) -> torch.dtype:
    """The parameters' dtype, x's where there are none."""
    parameter = bias if weight is None else weight
    return x.dtype if parameter is None else parameter.dtype


def clamp_by_magnitude(gamma: Tensor, eps: float) -> Tensor:
    """gamma, but at least eps away from 0, on the side it was; NaN stays."""
    return torch.where(gamma >= 0, gamma.clamp(min=eps), gamma.clamp(max=-eps))


def normalised_from_input(x: Tensor, mean: Statistic, invvar: Tensor) -> Tensor:
    """x̂ = (x - mean) invvar."""
    return (x if mean is None else x - mean) * invvar


def normalised_from_output(
    output: Tensor, gamma: Parameter, beta: Parameter, eps: float, shape: Shape, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    """(x̂, y - beta), with x̂ = (y - beta) / gamma: gamma clamped, or, with kept columns, as it is and they as kept.

    output, gamma, beta: in accumulator precision.
    """
    shifted = output if beta is None else output - beta
    if kept is None:
        return shifted if gamma is None else shifted / clamp_by_magnitude(gamma, eps), shifted
    columns, values = kept
    size = values.numel()
    if type(size) is int and not size:  # no column, or no row; of a graph, that is known when it runs
        return shifted if gamma is None else shifted / gamma, shifted
    there = columns >= 0
    at = columns[there].long()
    xhat = shifted
    if gamma is not None:
        # what is replaced below must not be an infinity: its derivative would be one, too, and 0 times it NaN
        xhat = shifted / gamma.flatten().index_fill(0, at, 1).reshape(shape)
    return replaced(xhat, at, values[:, there]), shifted


def replaced(tensor: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """A tensor with other values (n1, columns) in some of its columns."""
    n1 = values.shape[0]
    rows = tensor.reshape(n1, tensor.numel() // max(1, n1))
    return rows.index_copy(1, columns, values.to(rows.dtype)).reshape(tensor.shape)


def projected(
    g: Tensor, mean_of: Tensor | None, products: Tensor, xhat: Tensor, invvar: Tensor, shape: Shape
) -> Tensor:
    """(g - mean(mean_of) - x̂ mean(products)) invvar: what a gradient at x̂ is at x. mean_of is None for RMSNorm."""
    dims = inner(shape)
    result = g - xhat * products.mean(dims, keepdim=True)
    if mean_of is not None:
        result = result - mean_of.mean(dims, keepdim=True)
    return result * invvar


def backward(
    grad_output: Tensor,
    saved: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    kept: Kept | None,
    input_dtype: torch.dtype,
) -> Gradients:
    """(grad_input, grad_weight, grad_bias), as `normlab.layer_norm_backward`; those of absent parameters are None.

    kept: what `keep` gave, for memory_efficient="exact", else None. input_dtype: of the forward's x, and so of
    grad_input.
    """
    wide = invvar.dtype
    dy, gamma, beta = to(grad_output, wide).contiguous(), to(weight, wide), to(bias, wide)
    invvar, values = column(invvar, dy, shape), to(saved, wide).contiguous()
    grad_weight: Tensor | None
    grad_bias: Tensor | None
    once = not torch.is_grad_enabled() and not in_a_graph(saved)
    if once and mean is not None and not memory_efficient:
        # Handed x, it would subtract the mean from products of x, and lose the digits that x and its mean share.
        grad_input, grad_weight, grad_bias = _fused(dy, values - column(mean, dy, shape), invvar, shape, gamma, beta)
    elif once and memory_efficient and not rms and (kept is not None or _divides(gamma, eps)):
        xhat, _ = normalised_from_output(values, gamma, beta, eps, shape, kept)
        grad_input, grad_weight, grad_bias = _fused(dy, xhat, torch.ones_like(invvar), shape, gamma, beta)
        grad_input = grad_input * invvar
    else:
        if not memory_efficient:
            xhat = normalised_from_input(values, column(mean, dy, shape), invvar)
        else:
            xhat, shifted = normalised_from_output(values, gamma, beta, eps, shape, kept)
        g = mean_of = dy if gamma is None else dy * gamma
        products = g * xhat
        if memory_efficient and kept is None:  # apex's way: g has the clamped gamma, its mean the gamma as it is
            products = dy * shifted  # dy gamma x̂: the division by gamma cancels
            if gamma is not None:
                g = dy * clamp_by_magnitude(gamma, eps)
        grad_input = projected(g, None if rms else mean_of, products, xhat, invvar, shape)
        rows = outer(dy, shape)
        grad_weight = None if weight is None else _summed(dy * xhat, rows)
        grad_bias = None if bias is None else _summed(dy, rows)
    return (
        to(grad_input, input_dtype),
        None if weight is None else to(grad_weight, weight.dtype),
        None if bias is None else to(grad_bias, bias.dtype),
    )


def _fused(
    dy: Tensor, centred: Tensor, scale: Tensor, shape: Shape, gamma: Parameter, beta: Parameter
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm's gradients by one operation of PyTorch's: x̂ is centred times scale, a factor of grad_input, too."""
    wanted = [True, gamma is not None, beta is not None]
    return _native_backward(dy, centred, shape, torch.zeros_like(scale), scale, gamma, beta, wanted)


_native_backward = torch.ops.aten.native_layer_norm_backward.default


@overload
def to(tensor: Tensor, dtype: torch.dtype) -> Tensor: ...
@overload
def to(tensor: None, dtype: torch.dtype) -> None: ...
def to(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """tensor.to(dtype), at a tenth of its price where there is nothing to do: a call asks for a dozen. None stays."""
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


@overload
def column(statistic: Tensor, like: Tensor, shape: Shape) -> Tensor: ...
@overload
def column(statistic: None, like: Tensor, shape: Shape) -> None: ...
def column(statistic: Tensor | None, like: Tensor, shape: Shape) -> Tensor | None:
    """A statistic so that it broadcasts against the rows of `like`; None stays."""
    if statistic is None or statistic.dim() == like.dim():
        return statistic
    return statistic.reshape(statistic.shape + (1,) * len(shape))


def _divides(gamma: Parameter, eps: float) -> bool:
    """Is it as it is after the clamp, and nowhere 0? Of a meta tensor that may be said."""
    return gamma is None or gamma.is_meta or bool(((gamma.abs() >= eps) & (gamma != 0)).all())


def _summed(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The sum over some dimensions, which may be none: for PyTorch that would mean all. A tensor of its own."""
    return tensor.sum(dims) if dims else tensor.clone()
