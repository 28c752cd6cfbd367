"""A norm of x + residual by normlab's kernels; the functions are those of `normlab.nn.add_norm.vectorised`."""

from typing import Any

from torch import Tensor

from normlab.host import add_norm
from normlab.nn.add_norm.how import AddHow
from normlab.nn.launched import world
from normlab.nn.shapes import Gradients, Parameter, Saved, Statistic


def forward(
    x: Tensor, residual: Parameter, weight: Parameter, bias: Parameter, how: AddHow
) -> tuple[Tensor, Tensor, Statistic, Tensor]:
    """Return (output, new_residual, mean, invvar)."""
    with world(x):
        output, new_residual, *rest = add_norm.forward(x, residual, weight, bias, how.eps, how.rms, how.offset)
    return output, x if residual is None else new_residual, *rest


def backward(grad_output: Tensor, grad_residual: Parameter, saved: Saved, how: AddHow, dtype: Any) -> Gradients:
    """Return (grad, grad_weight, grad_bias)."""
    tensor, invvar, weight, bias, _, _, mean = saved
    options = how.eps, how.rms, how.offset, bool(how.memory_efficient), dtype
    call = add_norm.AddNormBackward(grad_output, grad_residual, tensor, mean, invvar, weight, bias, *options)
    with world(tensor):
        return add_norm.backward(call)
