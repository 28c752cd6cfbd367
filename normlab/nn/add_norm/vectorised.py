"""A norm of x + residual by PyTorch's own operations: CPU tensors, transforms and second derivatives."""

from torch import Tensor

from normlab.nn import formulas, vectorised
from normlab.nn.add_norm.how import AddHow
from normlab.nn.formulas import accumulator, output_dtype, to
from normlab.nn.gradients import composed as composed_gradients
from normlab.nn.shapes import Gradients, Parameter, Saved, Statistic


def summed(x: Tensor, residual: Parameter) -> Tensor:
    """Return x + residual, in the accumulator's dtype and then in the residual's; x itself without a residual."""
    # PyTorch adds halves in float32, too, and promotes a mix to float32
    return x if residual is None else to(x + residual, residual.dtype)


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


def backward(grad_output: Tensor, grad_residual: Parameter, saved: Saved, how: AddHow, dtype: object) -> Gradients:
    """Return (grad, grad_weight, grad_bias). dtype: the residual's, which grad has."""
    wide = saved._replace(weight=how.gamma(saved.weight, saved.invvar))
    found = vectorised.backward(grad_output, wide, how.plain(saved, saved.invvar.dtype))
    return finished(found, grad_residual, saved, dtype)  # type: ignore[return-value]


def composed_backward(
    grad_output: Parameter, grad_residual: Parameter, grad_invvar: Parameter, saved: Saved, how: AddHow, dtype: object
) -> tuple[Parameter, Parameter, Parameter]:
    """Return the gradients as `backward`, differentiable, also from a gradient at invvar."""
    wide = saved._replace(weight=how.gamma(saved.weight, saved.invvar))
    plain = how.plain(saved, accumulator(saved.invvar.dtype))
    return finished(composed_gradients(grad_output, grad_invvar, None, wide, plain), grad_residual, saved, dtype)


def finished(
    found: tuple[Parameter, Parameter, Parameter], grad_residual: Parameter, saved: Saved, dtype: object
) -> tuple[Parameter, Parameter, Parameter]:
    """Return a plain norm's gradients with the residual's added, in their dtypes."""
    through_norm, grad_weight, grad_bias = found
    grad = grad_residual if through_norm is None else through_norm
    if through_norm is not None and grad_residual is not None:
        grad = through_norm + grad_residual
    return (
        None if grad is None else grad.to(dtype),  # type: ignore[call-overload]
        None if grad_weight is None or saved.weight is None else formulas.to(grad_weight, saved.weight.dtype),
        None if grad_bias is None or saved.bias is None else formulas.to(grad_bias, saved.bias.dtype),
    )
