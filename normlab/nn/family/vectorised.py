"""Compute the family by PyTorch's own operations, in accumulator precision: one formula for all norms; rounded once.

Everything here is differentiable. Transforms and second derivatives use it on every device. It also computes CPU
tensors without elements (`normlab.nn.family.aten`) and tensors on devices without kernels. A group of channels is a
view.
"""

import torch
from torch import Tensor

from normlab.nn.family.norms import Given, Norm
from normlab.nn.formulas import accumulator, affine
from normlab.nn.private import batched, unsafe_view
from normlab.nn.shapes import Gradients, Parameter


def forward(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar), where output = x̂ gamma + beta. With norm.own it updates the running statistics.

    x, output: (N, C, *spatial); the output has the strides of `dense(norm, x)`.
    mean, invvar: `norm.statistics_shape`, accumulator precision.
    """
    x, running_mean, running_var, weight, bias, momentum, eps = given
    values = norm.split(dense(norm, x).to(accumulator(x.dtype)))
    mean, variance = moments(values, norm, running_mean, running_var)
    if norm.own and running_mean is not None and running_var is not None and x.numel():
        update(values, mean, variance, momentum, running_mean, running_var)
    invvar = (variance + eps).rsqrt()
    output = scaled(values, mean, invvar, weight, bias)
    return unsafe_view(output, x.shape).to(x.dtype), mean, invvar  # no view: may be written to


def moments(
    values: Tensor, norm: Norm, running_mean: Parameter = None, running_var: Parameter = None
) -> tuple[Tensor, Tensor]:
    """Return (mean, biased variance) of the sets of a split tensor; without norm.own, every set's running ones."""
    if norm.own or running_mean is None or running_var is None:
        over = norm.over(values)
        mean = values.mean(over)
        return mean, (values - column(mean, values)).square().mean(over)
    shape = values.shape[1:2] if norm.kind == "batch" else values.shape[:2]
    mean, variance = (one.to(values.dtype).expand(shape).clone() for one in (running_mean, running_var))
    return mean, variance


def statistics(x: Tensor, norm: Norm, eps: float) -> tuple[Tensor, Tensor]:
    """Return (mean, invvar) of x's own sets, as differentiable functions of x."""
    mean, variance = moments(norm.split(x.to(accumulator(x.dtype))), norm)
    return mean, (variance + eps).rsqrt()


def update(
    values: Tensor, mean: Tensor, variance: Tensor, momentum: float, running_mean: Tensor, running_var: Tensor
) -> None:
    """Set running = (1 - momentum) running + momentum new. new: the samples' average; its variance is unbiased."""
    channels, count = values.shape[1], values.numel() // mean.numel()
    unbiased = variance * (count / (count - 1))
    for running, new in ((running_mean, mean), (running_var, unbiased)):
        average = new.detach().reshape(-1, channels).mean(0)
        # An alias, because torch.func.grad refuses to change the tensor itself; PyTorch's norms change it.
        torch.ops.aten.alias(running.detach()).copy_((1 - momentum) * running.to(average.dtype) + momentum * average)


def backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, norm: Norm, weight: Parameter, bias: Parameter
) -> Gradients:
    """Return (grad_input, grad_weight, grad_bias) of sum(grad_output · output); None for an absent parameter's.

    grad_input has the strides of `dense(norm, x)`.
    """
    x, wide = dense(norm, x), invvar.dtype
    values, dy = norm.split(x.to(wide)), norm.split(with_strides_of(x, grad_output).to(wide))
    xhat = normalised(values, mean, invvar)
    g = dy if weight is None else dy * along(weight, values)
    if norm.own:
        over = norm.over(values)
        grad_xhat = g - column(g.mean(over), values) - xhat * column((g * xhat).mean(over), values)
    else:
        grad_xhat = g  # the statistics do not depend on x
    grad_input = (grad_xhat * column(invvar, values)).reshape(x.shape).to(x.dtype)
    others = (0, *range(3, values.dim()))
    return (
        grad_input,
        None if weight is None else (dy * xhat).sum(others).reshape(-1).to(weight.dtype),
        None if bias is None else dy.sum(others).reshape(-1).to(bias.dtype),
    )


def normalised(values: Tensor, mean: Tensor, invvar: Tensor) -> Tensor:
    """Return x̂ = (x - mean) invvar."""
    return (values - column(mean, values)) * column(invvar, values)


def scaled(values: Tensor, mean: Tensor, invvar: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Return x̂ weight + bias of a split tensor."""
    gamma = None if weight is None else along(weight, values)
    beta = None if bias is None else along(bias, values)
    return affine(normalised(values, mean, invvar), gamma, beta)


def column(statistic: Tensor, values: Tensor) -> Tensor:
    """Return a statistic, one number per set, in a shape that broadcasts against a split tensor."""
    return statistic.reshape(statistic.shape + (1,) * (values.dim() - 2))


def along(parameter: Tensor, values: Tensor) -> Tensor:
    """Return a parameter, one number per channel, in the precision of a split tensor and broadcasting against it."""
    return parameter.to(values.dtype).reshape(values.shape[1:3] + (1,) * (values.dim() - 3))


def dense(norm: Norm, x: Tensor) -> Tensor:
    """Return x in the memory format of torch.nn.functional; a batch made by vmap has the contiguous format only.

    Dynamo, which compiles torch.func's transforms, cannot tell whether x is such a batch.
    """
    return x.contiguous() if torch.compiler.is_compiling() or batched(x) else norm.in_layout(x)


def with_strides_of(x: Tensor, tensor: Tensor) -> Tensor:
    """Return `tensor`, of x's shape, with x's strides; x is dense. A vmap's batch stays: its strides are unknown."""
    if tensor.stride() == x.stride() or batched(tensor):
        return tensor
    return torch.empty_like(x, dtype=tensor.dtype).copy_(tensor)
