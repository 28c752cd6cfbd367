"""A rank's part of a batch norm by normlab's kernels, on a GPU or in the simulator; see `channels_vectorised`."""

import torch
from torch import Tensor

from normlab.host import sharded_batch
from normlab.nn.engines import by_kernels
from normlab.nn.launched import world
from normlab.nn.private import in_a_graph
from normlab.nn.shapes import Parameter


def merges(x: Tensor) -> bool:
    """Return True if kernels merge the ranks' messages: not in compiled code. The same on all ranks."""
    return not in_a_graph(x) and by_kernels(x)  # Dynamo cannot trace the second question


def message(x: Tensor) -> Tensor:
    """Return this rank's message for the forward: the moments of its channels, which have values."""
    with world(x):
        mean, m2 = sharded_batch.channel_moments(x.detach())
    return torch.cat((mean.new_full((1,), x.numel() // x.shape[1]), mean, m2))


def output(x: Tensor, mean: Tensor, invvar: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Return this rank's samples of the output. mean, invvar: (C,)."""
    with world(x):
        return sharded_batch.channels_normalised(x.detach(), mean, invvar, weight, bias)


def sums(grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor) -> Tensor:
    """Return this rank's message for the backward: Σ dy of each channel, then Σ dy x̂; (2 C,)."""
    with world(x):
        return torch.cat(sharded_batch.channel_sums(grad_output, x, mean, invvar))


def grad_input(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, weight: Parameter, mean_g: Tensor, mean_gx: Tensor
) -> Tensor:
    """Return this rank's samples of the gradient of x. mean_g, mean_gx: (C,), over all ranks' samples."""
    with world(x):
        return sharded_batch.channels_gradient(grad_output, x, mean, invvar, weight, mean_g, mean_gx)
