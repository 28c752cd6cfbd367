"""The family by normlab's kernels, through `normlab.host.family`: CUDA tensors on their GPU, CPU ones in the simulator.

The functions are those of `normlab.nn.family.vectorised`, which documents them.
"""

from torch import Tensor

from normlab.host import family
from normlab.nn.family.norms import Given, Norm
from normlab.nn.launched import world
from normlab.nn.shapes import Gradients, Parameter


def forward(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar)."""
    x, running_mean, running_var, weight, bias, momentum, eps = given
    x = norm.in_layout(x)
    with world(x):
        if norm.groups is not None:
            return family.group_norm(x, norm.groups, weight, bias, eps=eps)
        arrays = x, running_mean, running_var, weight, bias
        if norm.kind == "batch":
            return family.batch_norm(*arrays, training=norm.own, momentum=momentum, eps=eps)
        return family.instance_norm(*arrays, use_input_stats=norm.own, momentum=momentum, eps=eps)


def backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, norm: Norm, weight: Parameter, bias: Parameter
) -> Gradients:
    """Return (grad_input, grad_weight, grad_bias)."""
    x = norm.in_layout(x)
    with world(x):
        if norm.groups is not None:
            return family.group_norm_backward(grad_output, x, mean, invvar, norm.groups, weight, bias)
        arrays = grad_output, x, mean, invvar, weight, bias
        if norm.kind == "batch":
            return family.batch_norm_backward(*arrays, training=norm.own)
        return family.instance_norm_backward(*arrays, use_input_stats=norm.own)
