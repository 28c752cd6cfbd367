"""A rank's part of a sharded norm by normlab's kernels, on a GPU or in the simulator; see `vectorised`.

The host functions are in `host.sharded`, the kernels that merge the ranks' messages in `kernels.ranks`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from normlab.host import sharded
from normlab.nn.engines import by_kernels
from normlab.nn.launched import world
from normlab.nn.private import in_a_graph
from normlab.nn.shapes import Gradients, How, Parameter, Saved, Statistic


def merges(x: Tensor, how: How) -> bool:
    """Return True if kernels merge the ranks' messages: not float64, not the exact mode, not compiled code, some rows.

    The answer is the same on all ranks, also on one without columns, so that all of them get the same bits.
    """
    if in_a_graph(x):  # first, because Dynamo cannot trace the other questions
        return False
    rows = x.shape[:-1].numel()
    return by_kernels(x) and x.dtype is not torch.float64 and how.memory_efficient != "exact" and rows > 0


def message(x: Tensor, rms: bool) -> Tensor:
    """Return this rank's message for the forward: the moments of its columns, of which there is at least one."""
    with world(x):
        return sharded.row_message(x.detach().reshape(-1, x.shape[-1]), rms)[0]


def output(x: Tensor, mean: Statistic, invvar: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Return this rank's columns of the output. mean, invvar: (*leading, 1)."""
    rows, center = x.detach().reshape(-1, x.shape[-1]), None if mean is None else mean.view(-1)
    with world(x):
        return sharded.normalised(rows, weight, bias, center, invvar.view(-1))[0].view(x.shape)


def backward(grad_output: Tensor, saved: Saved, how: How) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
    """Return this rank's message for the backward, and the function from all ranks' means to the gradients."""
    shape = saved.tensor.shape
    rows, dy = (one.reshape(-1, shape[-1]) for one in (saved.tensor, grad_output))
    mean = None if saved.mean is None or how.memory_efficient else saved.mean.view(-1)
    call = sharded.ShardedBackward(
        dy,
        rows,
        saved.invvar.view(-1),
        saved.weight,
        saved.bias,
        mean,
        how.eps,
        how.rms,
        bool(how.memory_efficient),
        str(how.dtype).removeprefix("torch."),
    )
    with world(rows):
        message = call.message()

    def gradients(means: Tensor) -> Gradients:
        with world(rows):
            grad_input, grad_weight, grad_bias = call.gradients(means)
        return grad_input.view(shape), grad_weight, grad_bias

    return message, gradients
