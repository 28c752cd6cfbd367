"""A norm of x + residual by PyTorch's own operations: CPU tensors, transforms and second derivatives."""

import torch
from torch import Tensor

from normlab.nn import vectorised
from normlab.nn.add_norm.how import AddHow
from normlab.nn.formulas import accumulator, in_dtypes, output_dtype, to
from normlab.nn.gradients import composed as composed_gradients
from normlab.nn.shapes import Gradients, Parameter, Saved, Statistic


def summed(x: Tensor, residual: Parameter) -> Tensor:
    """Return x + residual, in the accumulator's dtype and then in the residual's; x itself without a residual.

    The sum is contiguous as the kernel's, whatever strides the two have: the operators promise this to a compiler.
    """
    # PyTorch adds halves in float32, too, and promotes a mix to float32
    return x if residual is None else to(x + residual, residual.dtype).contiguous()


def forward(
    x: Tensor, residual: Parameter, weight: Parameter, bias: Parameter, how: AddHow
) -> tuple[Tensor, Tensor, Statistic, Tensor]:
    """Return (output, new_residual, mean, invvar). The statistics' last dimension may be left, as 1."""
    new_residual = summed(x, residual)
    gamma, dtype = how.gamma(weight, new_residual), output_dtype(new_residual, weight, bias)
    shape = tuple(new_residual.shape[-1:])
    output, mean, invvar = vectorised.forward(new_residual, shape, gamma, bias, how.eps, how.rms)
    return to(output, dtype), new_residual, mean, invvar


def composed(x: Tensor, residual: Parameter, weight: Parameter, bias: Parameter, how: AddHow) -> tuple[Tensor, Tensor]:
    """Return (output, new_residual), by operations that every transform of torch.func knows."""
    new_residual = summed(x, residual)
    gamma, shape = how.gamma(weight, new_residual), tuple(new_residual.shape[-1:])
    output = vectorised.composed(new_residual, shape, gamma, bias, how.eps, how.rms)
    return output.to(output_dtype(new_residual, weight, bias)), new_residual


def backward(grad_output: Tensor, grad_residual: Parameter, saved: Saved, how: AddHow, dtype: torch.dtype) -> Gradients:
    """Return (grad, grad_weight, grad_bias). dtype: the residual's, which grad has."""
    wide = saved._replace(weight=how.gamma(saved.weight, saved.invvar))
    found = vectorised.backward(grad_output, wide, how.plain(saved, saved.invvar.dtype))
    return finished(found, grad_residual, saved, dtype)  # type: ignore[return-value]


def composed_backward(
    grad_output: Parameter,
    grad_residual: Parameter,
    grad_invvar: Parameter,
    saved: Saved,
    how: AddHow,
    dtype: torch.dtype,
) -> tuple[Parameter, Parameter, Parameter]:
    """Return the gradients as `backward`, differentiable, also from a gradient at invvar."""
    wide = saved._replace(weight=how.gamma(saved.weight, saved.invvar))
    plain = how.plain(saved, accumulator(saved.invvar.dtype))
    return finished(composed_gradients(grad_output, grad_invvar, None, wide, plain), grad_residual, saved, dtype)


def finished(
    found: tuple[Parameter, Parameter, Parameter], grad_residual: Parameter, saved: Saved, dtype: torch.dtype
) -> tuple[Parameter, Parameter, Parameter]:
    """Return a plain norm's gradients with the residual's added, in their dtypes."""
    grad, grad_weight, grad_bias = found
    if grad_residual is not None:
        grad = grad_residual if grad is None else grad + grad_residual
    return in_dtypes((grad, grad_weight, grad_bias), dtype, saved.weight, saved.bias)
