"""RMSNorm with a gate by PyTorch's own operations: CPU tensors, transforms and second derivatives.

The formulas are those of `normlab.stages.gate`, over whole tensors in accumulator precision. All are differentiable.
Results are contiguous as the kernels', whatever the arguments' strides: the operators promise this to a compiler.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from normlab.nn.formulas import accumulator, clamp_by_magnitude, column, outer, output_dtype, statistics, summed, to
from normlab.nn.shapes import Parameter


class GateHow(NamedTuple):
    """What a forward and its backward need beside tensors."""

    eps: float
    norm_before_gate: bool
    memory_efficient: bool


class GateSaved(NamedTuple):
    """What a backward gets of its forward. tensor: x, or with memory_efficient the output."""

    tensor: Tensor
    gate: Tensor
    invvar: Tensor
    weight: Parameter


def forward(x: Tensor, gate: Tensor, weight: Parameter, how: GateHow) -> tuple[Tensor, Tensor]:
    """Return (output, invvar). invvar has the leading dimensions' shape."""
    wide = accumulator(x.dtype)
    values, factor = to(x, wide), silu(to(gate, wide))
    if not how.norm_before_gate:
        values = values * factor
    _, invvar = statistics(values, x.shape[-1:], how.eps, True)
    output = values * invvar
    if weight is not None:
        output = output * to(weight, wide)
    if how.norm_before_gate:
        output = output * factor
    return to(output, output_dtype(x, weight, None)).contiguous(), invvar.squeeze(-1).contiguous()


def backward(
    grad_output: Tensor, saved: GateSaved, how: GateHow, grad_invvar: Parameter = None
) -> tuple[Tensor, Tensor, Parameter]:
    """Return (grad_x, grad_gate, grad_weight). grad_invvar: a gradient at invvar, which second derivatives have."""
    wide, dtype, shape = saved.invvar.dtype, saved.gate.dtype, saved.gate.shape[-1:]
    dy, values, z = (to(one, wide) for one in (grad_output, saved.tensor, saved.gate))
    gamma, invvar = to(saved.weight, wide), column(saved.invvar, dy, shape)
    sigma = torch.sigmoid(z)
    factor, slope = z * sigma, sigma * (1 + z * torch.sigmoid(-z))  # silu(z) and its derivative
    grad = dy * factor if how.norm_before_gate else dy
    if how.memory_efficient:  # only with norm_before_gate: the saved output is then x̂ gamma factor
        xhat = values / clamp_by_magnitude(factor if gamma is None else gamma * factor, how.eps)
    else:
        xhat = values * invvar if how.norm_before_gate else values * factor * invvar
    g = grad if gamma is None else grad * gamma
    through = (g - xhat * (g * xhat).mean(-1, keepdim=True)) * invvar
    if grad_invvar is not None:  # d invvar / dx = -invvar² x̂ / n
        through = through - column(grad_invvar, dy, shape) * invvar.square() * xhat / max(1, shape[0])
    if how.norm_before_gate:
        grad_x, grad_gate = through, dy * (xhat if gamma is None else xhat * gamma) * slope
    else:
        grad_x, grad_gate = through * factor, through * values * slope
    grad_weight = None if saved.weight is None else to(summed(grad * xhat, outer(dy, shape)), saved.weight.dtype)
    return to(grad_x, dtype).contiguous(), to(grad_gate, dtype).contiguous(), grad_weight


def composed_backward(
    grad_output: Parameter, grad_invvar: Parameter, saved: GateSaved, how: GateHow
) -> tuple[Parameter, Parameter, Parameter]:
    """Return the gradients as `backward`, so that autograd sees how all of them depend on x, the gate and the weight.

    A saved output and its invvar are results of the forward, whose own backward carries their gradients on to x.
    """
    if grad_output is None and grad_invvar is None:
        return None, None, None
    anew = saved
    if not how.memory_efficient:  # invvar computed again, so that autograd sees how it depends on x
        values = saved.tensor.to(saved.invvar.dtype)
        if not how.norm_before_gate:
            values = values * silu(saved.gate.to(values.dtype))
        anew = saved._replace(invvar=statistics(values, values.shape[-1:], how.eps, True)[1])
    if grad_output is None:
        dtype = saved.gate.dtype if saved.weight is None else saved.weight.dtype
        grad_output = torch.zeros_like(saved.gate, dtype=dtype)
    return backward(grad_output, anew, how, grad_invvar)
