"""Batch norm's kernels with a gap for a collective: this rank's message, then results from all ranks' messages.

`normlab.distributed` calls it. The kernels over a rank's samples are the family's that read an image in pieces
(`kernels.family`), which take every shape and dtype. `kernels.ranks` has the kernels that merge ranks. x is not empty.
x, the output and their gradients have the axes of `View.as_stored`. `host.replay` caches launches for repeated calls.
"""

from typing import Any, NamedTuple

import numpy as np

from normlab.engine import DeviceArray
from normlab.host import sharded
from normlab.host.arrays import FLOATS, Backend, dtype_name
from normlab.host.checks import statistics_dtype
from normlab.host.family import View
from normlab.host.sharded import replayed
from normlab.kernels import family as kernels
from normlab.kernels.family.merge import launch_message, launch_sums


@replayed("x")
def channels_message(backend: Backend, x: Any, view: View) -> tuple:
    """Return this rank's message for the forward: the moments of its channels, in accumulator precision."""
    call = _Call.of(backend, view, x)
    pieces, message = call.empty((3, call.walked.pieces.size)), call.empty((1 + 2 * call.sets.total,))
    call.walked.launch_moments(backend.launch, call.x, pieces)
    launch_message(backend.launch, pieces, call.walked.pieces, message)
    return ((message, message.shape),)


@replayed("messages", "x", "weight", "bias")
def channels_output(backend: Backend, messages: Any, x: Any, weight: Any, bias: Any, view: View, eps: float) -> tuple:
    """Return this rank's samples of the output, then the fields of `Statistics` of all ranks' samples.

    messages: of all ranks, overwritten. weight, bias: (C,), each may be None.
    """
    held = backend.operand(messages, messages.shape)
    call = _Call.of(backend, view, x)
    gamma, beta = call.of_channels(weight), call.of_channels(bias)
    found = sharded.launch_statistics(backend, held, eps, rms=False, variance=True)
    output = backend.empty(call.sets.shape, FLOATS[dtype_name(x)])
    call.walked.launch_output(backend.launch, call.x, found.mean, found.invvar, gamma, beta, output)
    return (output, view.stored_shape), *((one, one.shape) for one in found)


@replayed("x", "grad_output", "mean", "invvar")
def channels_sums(backend: Backend, x: Any, grad_output: Any, mean: Any, invvar: Any, view: View) -> tuple:
    """Return this rank's message for the backward: Σ dy and Σ dy x̂ of each channel, (2, C), in accumulator precision.

    mean, invvar: (C,), of all ranks' samples.
    """
    call = _Call.of(backend, view, x, grad_output)
    pieces, sums = call.empty((2, call.walked.pieces.size)), call.empty((2, call.sets.total))
    held = call.of_channels(mean), call.of_channels(invvar)
    call.walked.launch_sums(backend.launch, call.grad_output, call.x, *held, pieces)
    launch_sums(backend.launch, pieces, call.walked.pieces.by_channel(), None, 1, *_lines(sums))
    return ((sums, sums.shape),)


@replayed("messages", "count", "weight", "x", "grad_output", "mean", "invvar")
def channels_gradient(
    backend: Backend,
    messages: Any,
    count: Any,
    weight: Any,
    x: Any,
    grad_output: Any,
    mean: Any,
    invvar: Any,
    view: View,
) -> tuple:
    """Return this rank's samples of the gradient of x: (g - mean(g) - x̂ mean(g x̂)) invvar, where g = dy weight.

    messages: (ranks, 2 C), of all ranks, overwritten. count: (1,), of `Statistics`. weight: (C,) or None.
    """
    held, size = backend.operand(messages, messages.shape), backend.operand(count, (1,))
    gamma = backend.operand(weight, (view.shape[1],))
    call = _Call.of(backend, view, x, grad_output)
    statistics = call.of_channels(mean), call.of_channels(invvar)
    means = sharded.launch_means(backend, held, size, gamma, rms=False)
    grad_input = backend.empty(call.sets.shape, FLOATS[dtype_name(x)])
    wanted = grad_input, None, None
    operands = kernels.Gradients(call.sets, call.grad_output, call.x, *statistics, gamma, True, *wanted)
    call.walked.launch_gradient(backend.launch, operands, *_lines(means))
    return ((grad_input, view.stored_shape),)


def _lines(array: Any) -> tuple[Any, Any]:
    """Return the two lines of an array (2, n), in the same memory."""
    if not isinstance(array, DeviceArray):
        return array[0], array[1]
    first = array._replace(shape=array.shape[1:])
    return first, first._replace(pointer=first.pointer + array.shape[1] * array.dtype.itemsize)


class _Call(NamedTuple):
    """The operands and the walk of a call. statistics: the accumulator's dtype."""

    backend: Backend
    sets: kernels.Sets
    statistics: np.dtype
    x: Any
    grad_output: Any
    walked: Any

    @classmethod
    def of(cls, backend: Backend, view: View, x: Any, grad_output: Any = None) -> "_Call":
        """Return the call for arrays that `View.as_stored` returned."""
        sets = view.sets("batch", view.shape[1])
        statistics = FLOATS[statistics_dtype(dtype_name(x))]
        held = backend.operand(x, sets.shape), backend.operand(grad_output, sets.shape)
        walked = kernels.walk(sets, *(one for one in held if one is not None))
        return cls(backend, sets, statistics, *held, walked)

    def empty(self, shape: tuple[int, ...]) -> Any:
        """Return memory in accumulator precision."""
        return self.backend.empty(shape, self.statistics)

    def of_channels(self, array: Any) -> Any:
        """Return a number for each channel as an operand; None for None."""
        return self.backend.operand(array, (self.sets.total,))
