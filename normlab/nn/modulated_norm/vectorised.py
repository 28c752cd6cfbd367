"""LayerNorm modulated per sample by PyTorch's own operations: CPU tensors, transforms and second derivatives.

All functions compute in accumulator precision and are differentiable.
"""

from typing import NamedTuple

from torch import Tensor

from normlab.nn.formulas import accumulator, column, projected, statistics, to


class ModulatedSaved(NamedTuple):
    """What a backward gets of its forward. shift: for its dtype."""

    x: Tensor
    mean: Tensor
    invvar: Tensor
    scale: Tensor
    shift: Tensor


def forward(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar). The statistics have the leading dimensions' shape."""
    wide = accumulator(x.dtype)
    values = to(x, wide)
    mean, invvar = statistics(values, x.shape[-1:], eps, False)
    assert mean is not None  # of a LayerNorm
    gamma, beta = (of_samples(to(one, wide), x) for one in (scale, shift))
    output = (values - mean) * invvar * (1 + gamma) + beta
    return to(output, scale.dtype), mean.squeeze(-1), invvar.squeeze(-1)


def backward(grad_output: Tensor, saved: ModulatedSaved) -> tuple[Tensor, Tensor, Tensor]:
    """Return (grad_x, grad_scale, grad_shift)."""
    x, mean, invvar, scale, shift = saved
    wide, shape = invvar.dtype, x.shape[-1:]
    dy, invvar = to(grad_output, wide), column(invvar, x, shape)
    xhat = (to(x, wide) - column(mean, x, shape)) * invvar
    g = dy * (1 + of_samples(to(scale, wide), x))
    grad_x = projected(g, g, g * xhat, xhat, invvar, shape)
    rows = tuple(range(1, x.dim() - 1))  # of a sample
    sums = [one.sum(rows) if rows else one for one in (dy * xhat, dy)]
    return to(grad_x, x.dtype), to(sums[0], scale.dtype), to(sums[1], shift.dtype)


def composed_backward(grad_output: Tensor, saved: ModulatedSaved, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients as `backward`, from statistics computed again, so autograd sees how they depend on x."""
    mean, invvar = statistics(saved.x.to(saved.invvar.dtype), saved.x.shape[-1:], eps, False)
    assert mean is not None  # of a LayerNorm
    return backward(grad_output, saved._replace(mean=mean, invvar=invvar))


def of_samples(parameter: Tensor, x: Tensor) -> Tensor:
    """Return (samples, n) in a shape that broadcasts against x, (samples, ..., n)."""
    return parameter.reshape(parameter.shape[:1] + (1,) * (x.dim() - 2) + parameter.shape[1:])
