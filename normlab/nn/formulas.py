"""The formulas of a norm by PyTorch's operations, over whole tensors: all of them are differentiable.

The formulas are the same as in `normlab.stages.recompute` and `normlab.stages.gradient`. They compute in accumulator
precision: float64 for float64, else float32. Statistics broadcast against the rows.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple, TypeVar, overload

import torch
from torch import Tensor

from normlab.host.exact import Kept
from normlab.nn.shapes import Gradients, How, Parameter, Saved, Shape, Statistic

GradInput = TypeVar("GradInput", Tensor, Tensor | None)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums and statistics."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def output_dtype(x: Tensor, weight: Parameter, bias: Parameter) -> torch.dtype:
    """Return the parameters' dtype, or x's without parameters."""
    parameter = bias if weight is None else weight
    return x.dtype if parameter is None else parameter.dtype


def eps_or_default(eps: float | None, x: Tensor) -> float:
    """Return an RMSNorm's eps; for None PyTorch's default, the machine epsilon of the sums' dtype.

    x may be no tensor, which is told later.
    """
    return torch.finfo(accumulator(getattr(x, "dtype", torch.float32))).eps if eps is None else eps


def inner(shape: Shape) -> tuple[int, ...]:
    """Return the dimensions that a norm goes over, counted from the last."""
    return tuple(range(-len(shape), 0))


def outer(tensor: Tensor, shape: Shape) -> tuple[int, ...]:
    """Return the dimensions that number the rows."""
    return tuple(range(tensor.dim() - len(shape)))


@overload
def to(tensor: Tensor, dtype: torch.dtype) -> Tensor: ...
@overload
def to(tensor: None, dtype: torch.dtype) -> None: ...
def to(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return tensor.to(dtype), or None for None. A tensor of this dtype takes a tenth of the time of `Tensor.to`."""
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


@overload
def column(statistic: Tensor, like: Tensor, shape: Shape) -> Tensor: ...
@overload
def column(statistic: None, like: Tensor, shape: Shape) -> None: ...
def column(statistic: Tensor | None, like: Tensor, shape: Shape) -> Tensor | None:
    """Return a statistic in a shape that broadcasts against the rows of `like`; None for None."""
    if statistic is None or statistic.dim() == like.dim():
        return statistic
    return statistic.reshape(statistic.shape + (1,) * len(shape))


def present(tensors: Iterable[Parameter]) -> list[Tensor]:
    """Return the tensors that are not None."""
    return [one for one in tensors if one is not None]


def with_absent(found: Sequence[Tensor], weight: Parameter, bias: Parameter) -> Gradients:
    """Return (grad_input, grad_weight, grad_bias) from those that are `present`; None for an absent parameter's."""
    return found[0], None if weight is None else found[1], None if bias is None else found[-1]


def empty_gradients(weight: Parameter, bias: Parameter) -> list[Tensor]:
    """Return uninitialised tensors in place of the gradients of the parameters that are given."""
    return [one.new_empty(one.shape) for one in present((weight, bias))]


def in_dtypes(
    found: tuple[GradInput, Parameter, Parameter], dtype: torch.dtype, weight: Parameter, bias: Parameter
) -> tuple[GradInput, Parameter, Parameter]:
    """Return the gradients of x, weight and bias in the dtypes of these; None for an absent parameter's."""
    grad_input, grad_weight, grad_bias = found
    return (
        to(grad_input, dtype),
        None if weight is None else to(grad_weight, weight.dtype),
        None if bias is None else to(grad_bias, bias.dtype),
    )


def summed(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the sum over the given dimensions; for () a copy, where PyTorch would sum over all of them."""
    return tensor.sum(dims) if dims else tensor.clone()


def statistics(x: Tensor, shape: Shape, eps: float, rms: bool) -> tuple[Statistic, Tensor]:
    """Return (mean, invvar) of the rows of x, which is in accumulator precision."""
    dims = inner(shape)
    if rms:
        return None, (x.square().mean(dims, keepdim=True) + eps).rsqrt()
    mean = x.mean(dims, keepdim=True)
    return mean, ((x - mean).square().mean(dims, keepdim=True) + eps).rsqrt()


def clamp_by_magnitude(gamma: Tensor, eps: float) -> Tensor:
    """Return gamma moved to at least eps away from 0, with its sign; NaN stays."""
    if abs(eps) > torch.finfo(gamma.dtype).max:
        eps *= inf  # rounded as a kernel rounds it: PyTorch refuses to
    return torch.where(gamma >= 0, gamma.clamp(min=eps), gamma.clamp(max=-eps))


def normalised_from_input(x: Tensor, mean: Statistic, invvar: Tensor) -> Tensor:
    """Return x̂ = (x - mean) invvar."""
    return (x if mean is None else x - mean) * invvar


def affine(xhat: Tensor, gamma: Parameter, beta: Parameter) -> Tensor:
    """Return x̂ gamma + beta; an absent parameter changes nothing."""
    scaled = xhat if gamma is None else xhat * gamma
    return scaled if beta is None else scaled + beta


def normalised_from_output(
    output: Tensor, gamma: Parameter, beta: Parameter, eps: float, shape: Shape, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    """Return (x̂, y - beta), where x̂ = (y - beta) / gamma with gamma clamped.

    With kept columns gamma is not clamped, and x̂ of these columns is replaced by the kept values. output, gamma, beta:
    in accumulator precision.
    """
    shifted = output if beta is None else output - beta
    if kept is None:
        return shifted if gamma is None else shifted / clamp_by_magnitude(gamma, eps), shifted
    columns, values = kept
    size = values.numel()
    if type(size) is int and not size:  # no column or no row; in a graph the size may be unknown
        return shifted if gamma is None else shifted / gamma, shifted
    there = columns >= 0
    at = columns[there].long()
    xhat = shifted
    if gamma is not None:
        # Divide kept columns by 1: an infinity, though replaced below, would have an infinite derivative, and
        # 0 times infinity is NaN.
        xhat = shifted / gamma.flatten().index_fill(0, at, 1).reshape(shape)
    return replaced(xhat, at, values[:, there]), shifted


def replaced(tensor: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Return a copy of a tensor with the given values (n1, count) in the given columns."""
    n1 = values.shape[0]
    rows = tensor.reshape(n1, tensor.numel() // max(1, n1))
    return rows.index_copy(1, columns, values.to(rows.dtype)).reshape(tensor.shape)


def projected(
    g: Tensor, mean_of: Tensor | None, products: Tensor, xhat: Tensor, invvar: Tensor, shape: Shape
) -> Tensor:
    """Return (g - mean(mean_of) - x̂ mean(products)) invvar: the gradient at x from g at x̂. RMSNorm: mean_of=None."""
    dims = inner(shape)
    mean = None if mean_of is None else mean_of.mean(dims, keepdim=True)
    return less_means(g, mean, products.mean(dims, keepdim=True), xhat, invvar)


def less_means(g: Tensor, mean: Tensor | None, product_mean: Tensor, xhat: Tensor, invvar: Tensor) -> Tensor:
    """Return (g - mean - x̂ product_mean) invvar. RMSNorm: mean=None."""
    result = g - xhat * product_mean
    if mean is not None:
        result = result - mean
    return result * invvar


class Terms(NamedTuple):
    """The terms of a norm's gradients, one per element, in accumulator precision. invvar: broadcasts against them.

    g, mean_of, products, xhat, invvar: of `projected`. dy: the gradient at the output.
    """

    dy: Tensor
    g: Tensor
    mean_of: Tensor
    products: Tensor
    xhat: Tensor
    invvar: Tensor


def gradient_terms(grad_output: Tensor, saved: Saved, how: How) -> Terms:
    """Return the terms of the gradients. saved: with weight and bias in accumulator precision."""
    tensor, invvar, gamma, beta, *_, mean = saved
    _, shape, eps, _, memory_efficient = how
    kept = saved.kept
    wide = invvar.dtype
    dy, values = to(grad_output, wide), to(tensor, wide)
    invvar = column(invvar, dy, shape)
    if not memory_efficient:
        xhat = normalised_from_input(values, column(mean, dy, shape), invvar)
    else:
        xhat, shifted = normalised_from_output(values, gamma, beta, eps, shape, kept)
    g = mean_of = dy if gamma is None else dy * gamma
    products = g * xhat
    if memory_efficient and kept is None:  # as apex: g takes the clamped gamma, its mean the unclamped one
        products = dy * shifted  # dy gamma x̂: the division by gamma cancels
        if gamma is not None:
            g = dy * clamp_by_magnitude(gamma, eps)
    return Terms(dy, g, mean_of, products, xhat, invvar)


def parameter_gradients(terms: Terms, gamma: Parameter, beta: Parameter, shape: Shape) -> tuple[Parameter, Parameter]:
    """Return the gradients of weight and bias; None for an absent parameter's."""
    rows = outer(terms.dy, shape)
    grad_weight = None if gamma is None else summed(terms.dy * terms.xhat, rows)
    return grad_weight, None if beta is None else summed(terms.dy, rows)


def composed_gradients(grad_output: Tensor, saved: Saved, how: How) -> Gradients:
    """Return the gradients in accumulator precision, by operations that are differentiable themselves.

    saved: with weight and bias in accumulator precision.
    """
    terms = gradient_terms(grad_output, saved, how)
    _, g, mean_of, products, xhat, invvar = terms
    grad_input = projected(g, None if how.rms else mean_of, products, xhat, invvar, how.shape)
    return grad_input, *parameter_gradients(terms, saved.weight, saved.bias, how.shape)
