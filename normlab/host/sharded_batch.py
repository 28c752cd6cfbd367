"""Batch norm's kernels with a gap for a collective: sums of this rank's samples, then results from all ranks' sums.

`normlab.distributed` calls it. The kernels are the family's that read an image in pieces (`kernels.family`), which do
every shape and dtype. x: (N, C, *spatial), not empty; channels last stays so.
"""

from typing import Any

import numpy as np

from normlab.host.arrays import FLOATS, backend_of, dtype_name
from normlab.host.checks import statistics_dtype
from normlab.host.family import View, view_of
from normlab.kernels import family as kernels
from normlab.kernels.family.merge import launch_moments, launch_sums


def channel_moments(x: Any) -> tuple[Any, Any]:
    """Return (mean, m2) of each channel, (C,) each, in accumulator precision."""
    call = _Call(x)
    mean, variance, invvar = (call.empty((call.sets.total,)) for _ in range(3))
    pieces = call.empty((3, call.walked.pieces.size))
    call.walked.launch_moments(call.backend.launch, call.x, pieces)
    launch_moments(call.backend.launch, pieces, call.walked.pieces, call.statistics.type(0), mean, variance, invvar)
    mean, unbiased = (call.backend.give_back(one, (call.sets.total,)) for one in (mean, variance))
    if call.sets.values == 1:
        return mean, mean * 0  # the unbiased variance is 0 / 0
    return mean, unbiased * (call.sets.values - 1)


def channels_normalised(x: Any, mean: Any, invvar: Any, weight: Any, bias: Any) -> Any:
    """Return (x - mean) invvar weight + bias, like x. mean, invvar, weight, bias: (C,)."""
    call = _Call(x)
    output = call.backend.empty(call.sets.shape, FLOATS[dtype_name(x)])
    mean, invvar, weight, bias = map(call.of_channels, (mean, invvar, weight, bias))
    call.walked.launch_output(call.backend.launch, call.x, mean, invvar, weight, bias, output)
    return call.view.back(call.backend.give_back(output, call.view.memory))


def channel_sums(grad_output: Any, x: Any, mean: Any, invvar: Any) -> tuple[Any, Any]:
    """Return Σ dy and Σ dy x̂ of each channel, (C,) each, in accumulator precision."""
    call = _Call(x, grad_output)
    pieces = call.empty((2, call.walked.pieces.size))
    held = call.of_channels(mean), call.of_channels(invvar)
    call.walked.launch_sums(call.backend.launch, call.grad_output, call.x, *held, pieces)
    sums = tuple(call.empty((call.sets.total,)) for _ in range(2))
    launch_sums(call.backend.launch, pieces, call.walked.pieces.by_channel(), None, 1, *sums)
    first, second = (call.backend.give_back(one, (call.sets.total,)) for one in sums)
    return first, second


def channels_gradient(grad_output: Any, x: Any, mean: Any, invvar: Any, weight: Any, mean_g: Any, mean_gx: Any) -> Any:
    """Return (g - mean_g - x̂ mean_gx) invvar, like x, where g = dy weight. The others: (C,); weight may be None."""
    call = _Call(x, grad_output)
    grad_input = call.backend.empty(call.sets.shape, FLOATS[dtype_name(x)])
    mean, invvar, weight, mean_g, mean_gx = map(call.of_channels, (mean, invvar, weight, mean_g, mean_gx))
    wanted = grad_input, None, None
    operands = kernels.Gradients(call.sets, call.grad_output, call.x, mean, invvar, weight, True, *wanted)
    call.walked.launch_gradient(call.backend.launch, operands, mean_g, mean_gx)
    return call.view.back(call.backend.give_back(grad_input, call.view.memory))


class _Call:
    """The operands and the walk of a call."""

    def __init__(self, x: Any, grad_output: Any = None):
        self.backend = backend_of({"x": x}, {"grad_output": grad_output})
        self.view: View = view_of(x)
        self.sets = self.view.sets("batch", x.shape[1])
        self.statistics: np.dtype = FLOATS[statistics_dtype(dtype_name(x))]
        self.x, self.grad_output = (
            None if one is None else self.backend.operand(self.view.laid(one), self.sets.shape)
            for one in (x, grad_output)
        )
        self.walked = kernels.walk(self.sets, *(one for one in (self.x, self.grad_output) if one is not None))

    def empty(self, shape: tuple[int, ...]) -> Any:
        """Return memory in accumulator precision."""
        return self.backend.empty(shape, self.statistics)

    def of_channels(self, array: Any) -> Any:
        """Return a number for each channel as an operand; None for None."""
        return self.backend.operand(array, (self.sets.total,))
