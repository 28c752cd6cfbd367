"""LayerNorm modulated per sample by PyTorch's own operations: CPU tensors, transforms and second derivatives.

All functions compute in accumulator precision and are differentiable. Results are contiguous as the kernels', whatever
the arguments' strides: the operators promise this to a compiler.
"""

from typing import NamedTuple

from torch import Tensor

from normlab.nn.formulas import accumulator, column, projected, statistics, summed, to


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
    return to(output, scale.dtype).contiguous(), mean.squeeze(-1).contiguous(), invvar.squeeze(-1).contiguous()


def backward(grad_output: Tensor, saved: ModulatedSaved) -> tuple[Tensor, Tensor, Tensor]:
    """Return (grad_x, grad_scale, grad_shift)."""
    x, mean, invvar, scale, shift = saved
    wide, shape = invvar.dtype, x.shape[-1:]
    dy, invvar = to(grad_output, wide), column(invvar, x, shape)
    xhat = (to(x, wide) - column(mean, x, shape)) * invvar
    g = dy * (1 + of_samples(to(scale, wide), x))
    grad_x = projected(g, g, g * xhat, xhat, invvar, shape)
    rows = tuple(range(1, x.dim() - 1))  # of a sample
    grad_scale, grad_shift = (summed(one, rows) for one in (dy * xhat, dy))
    found = to(grad_x, x.dtype), to(grad_scale, scale.dtype), to(grad_shift, shift.dtype)
    return found[0].contiguous(), found[1].contiguous(), found[2].contiguous()


def composed_backward(grad_output: Tensor, saved: ModulatedSaved, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients as `backward`, from statistics computed again, so autograd sees how they depend on x."""
    mean, invvar = statistics(saved.x.to(saved.invvar.dtype), saved.x.shape[-1:], eps, False)
    assert mean is not None  # of a LayerNorm
    return backward(grad_output, saved._replace(mean=mean, invvar=invvar))


def of_samples(parameter: Tensor, x: Tensor) -> Tensor:
    """Return (samples, n) in a shape that broadcasts against x, (samples, ..., n)."""
    return parameter.reshape(parameter.shape[:1] + (1,) * (x.dim() - 2) + parameter.shape[1:])
