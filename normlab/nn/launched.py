"""A norm by normlab's kernels, through `normlab.ops`: CUDA tensors on their GPU, CPU tensors in the simulator.

The same functions as `normlab.nn.vectorised`, which documents them. Statistics have the input's leading dimensions.
"""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, dtype

from normlab import engine, ops, replay
from normlab.keeping import Kept, keep_columns
from normlab.nn import room, vectorised
from normlab.nn.shapes import Gradients, MemoryEfficient, Owners, Parameter, Shape, Statistic

nothing_to_keep = room.nothing_to_keep  # called in each forward of the exact mode: no function of its own around it

_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def world(tensor: Tensor) -> AbstractContextManager[None]:
    """Where kernels of this tensor run."""
    return _AS_IT_IS if tensor.is_cuda else engine.using("simulator")


def forward(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool
) -> tuple[Tensor, Statistic, Tensor]:
    """(output, mean, invvar)."""
    if 0 in shape:  # no columns: no kernels for that, and nothing to compute
        return vectorised.forward(x, shape, weight, bias, eps, rms)
    with world(x):
        if rms:
            output, invvar = ops.rms_norm_forward(x, shape, weight, eps)
            return output, None, invvar
        return ops.layer_norm_forward(x, shape, weight, bias, eps)


def keep(
    x: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    owners: Owners,
) -> Kept:
    """x̂ of the columns at risk. owners: the parameters by which `normlab.nn.room` remembers how many those are."""
    if 0 in shape:
        return vectorised.keep(x, mean, invvar, shape, weight, bias, eps, owners)
    given = x, mean, invvar, shape, weight, bias, eps
    owned = any(owner is not None for owner in owners)
    if x.is_cuda and owned:
        return room.keep(owners, given)
    with world(x):
        if not owned and eps <= 1:  # a weight of ones, at most, which nothing has to wait for
            return keep_columns(*given, capacity=0)
        return keep_columns(*given)


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
    forward: replay.Recording | None = None,
) -> Gradients:
    """(grad_input, grad_weight, grad_bias). forward: the recording that made the statistics."""
    if 0 in shape:
        return vectorised.backward(
            grad_output, saved, mean, invvar, shape, weight, bias, eps, rms, memory_efficient, kept, input_dtype
        )
    key, pointers = ops.backward_signature(
        grad_output, saved, mean, invvar, shape, weight, bias, eps, memory_efficient, kept, input_dtype, rms
    )
    recording = replay.find(key)
    if recording is not None:  # to find it here spares the way through three functions
        if forward is not None:
            tensors = grad_output, saved, invvar, weight, bias, *(kept or (None, None)), mean  # as their signature has
            forward.follow(memory_efficient, recording, tensors)
        return recording(pointers)
    how = memory_efficient, kept
    with world(saved):
        if rms:
            gradients = ops.rms_norm_backward(
                grad_output, saved, invvar, shape, weight, eps, *how, input_dtype=input_dtype
            )
            return *gradients, None
        return ops.layer_norm_backward(
            grad_output, saved, mean, invvar, shape, weight, bias, eps, *how, input_dtype=input_dtype
        )
