"""A norm by normlab's kernels, through `normlab.host.norms`: CUDA tensors on their GPU, CPU tensors in the simulator.

The functions are those of `normlab.nn.vectorised`, which documents them, except that statistics here have the shape of
the input's leading dimensions.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, dtype

from normlab import engine
from normlab.host import norms, replay
from normlab.host.exact import Kept, find_columns, keep_columns
from normlab.nn import exact, vectorised
from normlab.nn.shapes import Gradients, MemoryEfficient, Owners, Parameter, Shape, Statistic

_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def world(tensor: Tensor) -> AbstractContextManager[None]:
    """Return the context that a tensor's kernels are launched in: the simulator's for a CPU tensor."""
    return _AS_IT_IS if tensor.is_cuda else engine.using("simulator")


def forward(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool
) -> tuple[Tensor, Statistic, Tensor]:
    """Return (output, mean, invvar)."""
    if 0 in shape:  # there are no kernels for rows without columns, and nothing to compute
        return vectorised.forward(x, shape, weight, bias, eps, rms)
    with world(x):
        if rms:
            output, invvar = norms.rms_norm_forward(x, shape, weight, eps=eps)
            return output, None, invvar
        return norms.layer_norm_forward(x, shape, weight, bias, eps=eps)


def columns_at_risk(
    invvar: Tensor, output: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, owners: Owners
) -> Tensor:
    """Return the numbers of the columns at risk. owners: the caller's parameters, for `normlab.nn.exact`."""
    if 0 in shape or not invvar.numel():
        return vectorised.columns_at_risk(invvar, output, shape, weight, bias, eps, owners)
    if owners[0] is None and owners[1] is None and eps <= 1:  # there is at most autocast's weight of ones
        return torch.empty(0, dtype=torch.int32, device=output.device)
    if exact.takes(output, owners):
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
    if 0 in shape:
        return vectorised.keep(x, mean, invvar, shape, weight, bias, eps, columns)
    with world(x):
        return keep_columns(x, mean, invvar, shape, weight, bias, eps=eps, columns=columns).values


def backward(
    grad_output: Tensor,
    saved: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    kept: Kept | None,
    input_dtype: dtype,
) -> Gradients:
    """Return (grad_input, grad_weight, grad_bias)."""
    if 0 in shape:
        return vectorised.backward(
            grad_output, saved, mean, invvar, shape, weight, bias, eps, rms, memory_efficient, kept, input_dtype
        )
    key, pointers = norms.backward_signature(
        grad_output, saved, mean, invvar, shape, weight, bias, eps, memory_efficient, kept, input_dtype, rms
    )
    cached = replay.find(key)
    if cached is not None:  # found here, it saves the time of three more functions
        return cached(pointers)
    how: dict[str, Any] = {"memory_efficient": memory_efficient, "kept": kept, "input_dtype": input_dtype}
    with world(saved):
        if rms:
            gradients = norms.rms_norm_backward(grad_output, saved, invvar, shape, weight, eps=eps, **how)
            return *gradients, None
        return norms.layer_norm_backward(grad_output, saved, mean, invvar, shape, weight, bias, eps=eps, **how)
