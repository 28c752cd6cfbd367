"""A rank's part of a batch norm by normlab's kernels, on a GPU or in the simulator; see `channels_vectorised`.

x and grad_output have the axes of `View.as_stored`.
"""

from torch import Tensor

from normlab.host import sharded_batch
from normlab.host.family import View
from normlab.host.sharded import Statistics
from normlab.nn.engines import by_kernels
from normlab.nn.launched import world
from normlab.nn.private import in_a_graph
from normlab.nn.shapes import Parameter


def merges(x: Tensor) -> bool:
    """Return True if kernels merge the ranks' messages: not in compiled code. The same on all ranks."""
    return not in_a_graph(x) and by_kernels(x)  # Dynamo cannot trace the second question


def message(x: Tensor, view: View) -> Tensor:
    """Return this rank's message for the forward: the moments of its channels, which have values."""
    with world(x):
        return sharded_batch.channels_message(x, view)[0]


def output(
    x: Tensor, view: View, messages: Tensor, weight: Parameter, bias: Parameter, eps: float
) -> tuple[Tensor, Statistics]:
    """Return this rank's samples of the output, (N, C, *spatial), and all ranks' statistics. messages: overwritten."""
    with world(x):
        found, *statistics = sharded_batch.channels_output(messages, x, weight, bias, view, eps)
    return view.as_given(found), Statistics(*statistics)


def sums(grad_output: Tensor, x: Tensor, view: View, mean: Tensor, invvar: Tensor) -> Tensor:
    """Return this rank's message for the backward: Σ dy of each channel, then Σ dy x̂; (2 C,)."""
    with world(x):
        return sharded_batch.channels_sums(x, grad_output, mean, invvar, view)[0].view(-1)


def grad_input(
    grad_output: Tensor,
    x: Tensor,
    view: View,
    messages: Tensor,
    count: Tensor,
    mean: Tensor,
    invvar: Tensor,
    weight: Parameter,
) -> Tensor:
    """Return this rank's samples of the gradient of x, (N, C, *spatial).

    messages: (ranks, 2 C), of all ranks, overwritten. count: (1,), of `Statistics`.
    """
    with world(x):
        (found,) = sharded_batch.channels_gradient(messages, count, weight, x, grad_output, mean, invvar, view)
    return view.as_given(found)
