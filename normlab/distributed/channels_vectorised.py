"""A rank's part of a batch norm by PyTorch's operations: every device, empty batches, compiled code.

`channels_launched` does the same by normlab's kernels. x: (N, C, *spatial), in the layout of `Norm.in_layout`.
"""

import torch
from torch import Tensor

from normlab.distributed.merging import message_of
from normlab.nn.family.norms import Norm
from normlab.nn.family.vectorised import along, column, normalised, scaled, with_strides_of
from normlab.nn.formulas import accumulator, less_means, to
from normlab.nn.private import unsafe_view
from normlab.nn.shapes import Parameter

BATCH = Norm("batch", None, True)


def message(x: Tensor) -> Tensor:
    """Return this rank's message for the forward: the moments of its channels."""
    values = BATCH.split(x.to(accumulator(x.dtype)))
    return message_of(values, BATCH.over(values), x.numel() // max(1, x.shape[1]))


def output(x: Tensor, mean: Tensor, invvar: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Return this rank's samples of the output. mean, invvar: (C,)."""
    found = scaled(BATCH.split(x.to(invvar.dtype)), mean, invvar, weight, bias)
    # Not `.to`, which may return its own argument: Dynamo 2.11 then gives the gradient to the wrong one of the two.
    return to(unsafe_view(found, x.shape), x.dtype)  # no view: may be written to


def sums(grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor) -> Tensor:
    """Return this rank's message for the backward: Σ dy of each channel, then Σ dy x̂; (2 C,)."""
    values, dy = (BATCH.split(one.to(invvar.dtype)) for one in (x, with_strides_of(x, grad_output)))
    over = BATCH.over(values)
    xhat = normalised(values, mean, invvar)
    return torch.cat((dy.sum(over).flatten(), (dy * xhat).sum(over).flatten()))


def grad_input(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, weight: Parameter, mean_g: Tensor, mean_gx: Tensor
) -> Tensor:
    """Return this rank's samples of the gradient of x. mean_g, mean_gx: (C,), over all ranks' samples."""
    values, dy = (BATCH.split(one.to(invvar.dtype)) for one in (x, with_strides_of(x, grad_output)))
    g = dy if weight is None else dy * along(weight, values)
    means = column(mean_g, values), column(mean_gx, values)
    found = less_means(g, *means, normalised(values, mean, invvar), column(invvar, values))
    return to(found.reshape(x.shape), x.dtype)
