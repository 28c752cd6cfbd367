"""A norm by normlab's kernels, through `normlab.host.norms`: CUDA tensors on their GPU, CPU tensors in the simulator.

The functions are those of `normlab.nn.vectorised`, which documents them, except that statistics here have the shape of
the input's leading dimensions. Tensors without elements do not come here (`normlab.nn.engines`).
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from normlab import engine
from normlab.host import norms
from normlab.host.exact import find_columns, keep_columns
from normlab.nn import exact
from normlab.nn.shapes import Gradients, How, Owners, Parameter, Saved, Shape, Statistic

_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def world(tensor: Tensor) -> AbstractContextManager[None]:
    """Return the context that a tensor's kernels are launched in: the simulator's for a CPU tensor."""
    return _AS_IT_IS if tensor.is_cuda else engine.using("simulator")


def forward(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool
) -> tuple[Tensor, Statistic, Tensor]:
    """Return (output, mean, invvar)."""
    with world(x):
        return norms.forward(x, shape, weight, bias, eps, rms)


def columns_at_risk(
    invvar: Tensor, output: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, owners: Owners
) -> Tensor:
    """Return the numbers of the columns at risk. owners: the caller's parameters, for `normlab.nn.exact`."""
    without = owners[0] is None and owners[1] is None
    if without and eps <= 1:  # there is at most autocast's weight of ones
        return torch.empty(0, dtype=torch.int32, device=output.device)
    if not without and exact.can_count(output, owners):
        return exact.columns_at_risk(invvar, output.dtype, eps, owners)
    with world(output):
        return find_columns(invvar, shape, weight, bias, eps, output)


def keep(
    x: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    columns: Tensor,
) -> Tensor:
    """Return x̂ of the given columns."""
    with world(x):
        return keep_columns(x, mean, invvar, shape, weight, bias, eps=eps, columns=columns).values


def backward(grad_output: Tensor, saved: Saved, how: How) -> Gradients:
    """Return (grad_input, grad_weight, grad_bias)."""
    dtype, shape, eps, rms, memory_efficient = how
    tensor, invvar, weight, bias, *_, mean = saved
    options = eps, rms, memory_efficient, saved.kept, dtype
    call = norms.BackwardCall(grad_output, tensor, mean, invvar, shape, weight, bias, *options)
    if tensor.is_cuda:  # without a context, which takes half a microsecond
        return norms.backward(call)
    with world(tensor):
        return norms.backward(call)
