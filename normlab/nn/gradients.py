"""The gradients of a norm where somebody looks on, beside those that `normlab.nn.engines` computes straight away.

Second derivatives, batches of gradients and tangents need all operations to be seen: `composed`. A graph that holds a
backward needs one operator: `in_graph`. Both take what a norm has saved, whoever it was: `Saved`. Which of them it is,
`normlab.nn.private.onlooker` says; but from gradients at invvar or the kept x̂ there is `composed` alone.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from normlab.host.exact import Kept
from normlab.nn import formulas, vectorised
from normlab.nn.shapes import Gradients, MemoryEfficient, Parameter, Shape


class Saved(NamedTuple):
    """Tensors: the input or the output, and what belongs to it; columns and values as a `Kept`."""

    tensor: Tensor
    invvar: Tensor
    weight: Parameter
    bias: Parameter
    columns: Parameter
    values: Parameter
    mean: Parameter

    @property
    def kept(self) -> Kept | None:
        """The normalised values of the columns at risk, if any were looked for."""
        return None if self.columns is None or self.values is None else Kept(self.columns, self.values)


class How(NamedTuple):
    """What else a backward has to know. dtype: the input's."""

    dtype: torch.dtype
    shape: Shape
    eps: float
    rms: bool
    memory_efficient: MemoryEfficient


def composed(
    grad_output: Tensor | None, grad_invvar: Tensor | None, grad_values: Tensor | None, saved: Saved, how: How
) -> tuple[Parameter, Parameter, Parameter]:
    """Gradients of x, weight and bias, from those at what the forward returns, which a second derivative reaches.

    Saving the output, x is not at hand for a second derivative. It is reached through what depends on it: the output,
    the invvar and the kept x̂ are all outputs of the forward, and are saved as such, so that gradients of theirs come
    back to it.
    """
    dtype, shape, eps, rms, memory_efficient = how
    mean, invvar = saved.mean, saved.invvar
    if not memory_efficient:  # so that the gradient knows how they depend on x
        mean, invvar = formulas.statistics(saved.tensor.to(invvar.dtype), shape, eps, rms)
    result: tuple[Parameter, Parameter, Parameter] = None, None, None
    if grad_output is not None:
        result = vectorised.backward(
            grad_output, saved.tensor, mean, invvar, shape, saved.weight, saved.bias, eps, rms, memory_efficient,
            saved.kept, dtype,
        )  # fmt: skip
    if grad_invvar is not None or grad_values is not None:
        further = _through_saved(grad_invvar, grad_values, saved, how).to(dtype)
        result = further if result[0] is None else result[0] + further, *result[1:]
    return result


def in_graph(grad_output: Tensor, saved: Saved, how: How) -> Gradients:
    """Gradients of x, weight and bias, by an operator."""
    tensor, invvar, weight, bias, columns, values, mean = saved
    dtype, shape, eps, rms, memory_efficient = how
    found = torch.ops.normlab.norm_backward(
        grad_output, tensor, mean, invvar, columns, values, shape, weight, bias, eps, rms, bool(memory_efficient), dtype
    )
    return found[0], None if weight is None else found[1], None if bias is None else found[-1]


def _through_saved(grad_invvar: Tensor | None, grad_values: Tensor | None, saved: Saved, how: How) -> Tensor:
    """What the gradients at invvar and at the kept x̂ are at x; both are there in a second derivative only.

    d invvar / dx = -invvar² x̂ / n, and a gradient at some columns of x̂ is one of g.
    """
    _, shape, eps, rms, _ = how
    output, wide, kept = saved.tensor, saved.invvar.dtype, saved.kept
    gamma, beta = formulas.to(saved.weight, wide), formulas.to(saved.bias, wide)
    xhat, _ = formulas.normalised_from_output(output.to(wide), gamma, beta, eps, shape, kept)
    column = formulas.column(saved.invvar, output, shape)
    result = torch.zeros_like(xhat)
    if grad_invvar is not None:
        size = xhat.numel() // max(1, saved.invvar.numel())
        result = result - formulas.column(grad_invvar, output, shape) * column.square() * xhat / size
    if grad_values is not None and kept is not None:
        columns, _ = kept
        there = columns >= 0
        g = formulas.replaced(torch.zeros_like(xhat), columns[there].long(), grad_values[:, there])
        result = result + formulas.projected(g, None if rms else g, g * xhat, xhat, column, shape)
    return result
