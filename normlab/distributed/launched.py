"""A rank's part of a sharded norm by normlab's kernels, on a GPU or in the simulator; see `vectorised`.

Long rows come in pieces. Their moments are merged in the tree of `merging`, as the ranks' moments are afterwards.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from normlab.distributed import merging
from normlab.host import sharded
from normlab.nn.engines import by_kernels
from normlab.nn.launched import world
from normlab.nn.private import in_a_graph
from normlab.nn.shapes import Gradients, How, Parameter, Saved, Statistic


def takes(x: Tensor, how: How) -> bool:
    """Return True if the kernels compute this norm: not float64, not the exact mode, not compiled code."""
    if in_a_graph(x):  # first, because Dynamo cannot trace the other questions
        return False
    return by_kernels(x) and x.dtype is not torch.float64 and how.memory_efficient != "exact" and x.numel() > 0


def message(x: Tensor, rms: bool) -> Tensor:
    """Return this rank's message for the forward: the moments of its columns."""
    rows = x.detach().reshape(-1, x.shape[-1])
    with world(x):
        sums, sizes = sharded.piece_moments(rows, rms)
    count = sums.new_full((1,), rows.shape[1])
    if rms:
        return torch.cat((count, sums[1].sum(-1)))
    if len(sizes) == 1:
        return torch.cat((count, sums[0, :, 0] / rows.shape[1], sums[1, :, 0]))
    counts = sums.new_full((len(sizes), 1), sizes[0])
    counts[-1] = sizes[-1]  # only the last piece may be shorter; a list of numbers would be copied to the GPU
    pieces = torch.cat((counts, sums[0].T / counts, sums[1].T), 1)
    _, mean, m2 = merging.merged(pieces, False)
    assert mean is not None
    return torch.cat((count, mean, m2))


def output(x: Tensor, mean: Statistic, invvar: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Return this rank's columns of the output. mean, invvar: (*leading, 1)."""
    rows = x.detach().reshape(-1, x.shape[-1])
    center = None if mean is None else mean.flatten()
    with world(x):
        return sharded.normalised(rows, center, invvar.flatten(), weight, bias).view(x.shape)


def backward(grad_output: Tensor, saved: Saved, how: How) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
    """Return this rank's message for the backward, and the function from all ranks' means to the gradients."""
    shape = saved.tensor.shape
    rows, dy = (one.reshape(-1, shape[-1]) for one in (saved.tensor, grad_output))
    center = None if saved.mean is None else saved.mean.flatten()
    with world(rows):
        call = sharded.ShardedBackward(
            dy,
            rows,
            center,
            saved.invvar.flatten(),
            saved.weight,
            saved.bias,
            eps=how.eps,
            rms=how.rms,
            memory_efficient=bool(how.memory_efficient),
            input_dtype=str(how.dtype).removeprefix("torch."),
        )
        of_g, of_products = call.piece_sums().sum(-1)

    def gradients(means: Tensor) -> Gradients:
        both = torch.stack((torch.zeros_like(means[0]) if how.rms else means[1], means[0]))
        with world(rows):
            grad_input, grad_weight, grad_bias = call.gradients(both)
        return grad_input.view(shape), grad_weight, grad_bias

    return of_products if how.rms else torch.cat((of_products, of_g)), gradients
