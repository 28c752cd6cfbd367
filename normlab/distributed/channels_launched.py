"""A rank's part of a batch norm by normlab's kernels, on a GPU or in the simulator; see `channels_vectorised`."""

import torch
from torch import Tensor

from normlab.host import sharded_batch
from normlab.nn.engines import by_kernels
from normlab.nn.launched import world
from normlab.nn.private import in_a_graph
from normlab.nn.shapes import Parameter


def takes(x: Tensor) -> bool:
    """Return True if the kernels compute this norm: not of an empty batch, not in compiled code."""
    if in_a_graph(x):  # first, because Dynamo cannot trace the other questions
        return False
    return by_kernels(x) and x.numel() > 0


def message(x: Tensor) -> Tensor:
    """Return this rank's message for the forward: the moments of its channels."""
    with world(x):
        mean, m2 = sharded_batch.channel_moments(x.detach())
    return torch.cat((mean.new_full((1,), x.numel() // x.shape[1]), mean, m2))


def output(x: Tensor, mean: Tensor, invvar: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Return this rank's samples of the output. mean, invvar: (C,)."""
    with world(x):
        return sharded_batch.channels_normalised(x.detach(), mean, invvar, weight, bias)


def sums(grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor) -> Tensor:
    """Return this rank's message for the backward: Σ dy x̂ of each channel, then Σ dy; (2 C,)."""
    with world(x):
        of_dy, of_products = sharded_batch.channel_sums(grad_output, x, mean, invvar)
    return torch.cat((of_products, of_dy))


def grad_input(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, weight: Parameter, mean_gx: Tensor, mean_g: Tensor
) -> Tensor:
    """Return this rank's samples of the gradient of x. mean_gx, mean_g: (C,), over all ranks' samples."""
    with world(x):
        return sharded_batch.channels_gradient(grad_output, x, mean, invvar, weight, mean_g, mean_gx)
