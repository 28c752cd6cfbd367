"""Batch norm's kernels with a gap for a collective: this rank's samples' sums, then results from all ranks' sums.

`normlab.distributed` calls it. The kernels are the family's that read an image in pieces (`kernels.family`), which do
every shape and dtype. x: (N, C, *spatial), not empty; channels last stays so. Calls that repeat are cached with their
launches (`host.replay`).
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from normlab.host.arrays import FLOATS, Backend, dtype_name
from normlab.host.checks import statistics_dtype
from normlab.host.family import View, view_of
from normlab.host.sharded import repeated
from normlab.kernels import family as kernels
from normlab.kernels.family.merge import launch_moments, launch_sums


def channel_moments(x: Any) -> tuple[Any, Any]:
    """Return (mean, m2) of each channel, (C,) each, in accumulator precision."""
    view = view_of(x)
    mean, unbiased = repeated(_channel_moments, (view.laid(x),), view)
    values = prod(view.shape) // view.shape[1]
    return mean, unbiased * (values - 1) if values > 1 else mean * 0  # of one value it is 0 / 0


def _channel_moments(backend: Backend, tensors: Sequence[Any], view: View) -> tuple:
    call = _Call.of(backend, view, tensors[0])
    mean, variance, invvar = (call.empty((call.sets.total,)) for _ in range(3))
    pieces = call.empty((3, call.walked.pieces.size))
    call.walked.launch_moments(backend.launch, call.x, pieces)
    launch_moments(backend.launch, pieces, call.walked.pieces, call.statistics.type(0), mean, variance, invvar)
    return backend.give_back(mean, mean.shape), backend.give_back(variance, variance.shape)


def channels_normalised(x: Any, mean: Any, invvar: Any, weight: Any, bias: Any) -> Any:
    """Return (x - mean) invvar weight + bias, like x. mean, invvar, weight, bias: (C,)."""
    view = view_of(x)
    (output,) = repeated(_channels_normalised, (view.laid(x), mean, invvar, weight, bias), view)
    return view.back(output)


def _channels_normalised(backend: Backend, tensors: Sequence[Any], view: View) -> tuple:
    x, *parameters = tensors
    call = _Call.of(backend, view, x)
    output = backend.empty(call.sets.shape, FLOATS[dtype_name(x)])
    mean, invvar, weight, bias = map(call.of_channels, parameters)
    call.walked.launch_output(backend.launch, call.x, mean, invvar, weight, bias, output)
    return (backend.give_back(output, view.memory),)


def channel_sums(grad_output: Any, x: Any, mean: Any, invvar: Any) -> tuple[Any, Any]:
    """Return Σ dy and Σ dy x̂ of each channel, (C,) each, in accumulator precision."""
    view = view_of(x)
    of_dy, of_products = repeated(_channel_sums, (view.laid(x), view.laid(grad_output), mean, invvar), view)
    return of_dy, of_products


def _channel_sums(backend: Backend, tensors: Sequence[Any], view: View) -> tuple:
    x, grad_output, mean, invvar = tensors
    call = _Call.of(backend, view, x, grad_output)
    pieces = call.empty((2, call.walked.pieces.size))
    held = call.of_channels(mean), call.of_channels(invvar)
    call.walked.launch_sums(backend.launch, call.grad_output, call.x, *held, pieces)
    first, second = (call.empty((call.sets.total,)) for _ in range(2))
    launch_sums(backend.launch, pieces, call.walked.pieces.by_channel(), None, 1, first, second)
    return backend.give_back(first, first.shape), backend.give_back(second, second.shape)


def channels_gradient(grad_output: Any, x: Any, mean: Any, invvar: Any, weight: Any, mean_g: Any, mean_gx: Any) -> Any:
    """Return (g - mean_g - x̂ mean_gx) invvar, like x, where g = dy weight. The others: (C,); weight may be None."""
    view = view_of(x)
    tensors = view.laid(x), view.laid(grad_output), mean, invvar, weight, mean_g, mean_gx
    (grad_input,) = repeated(_channels_gradient, tensors, view)
    return view.back(grad_input)


def _channels_gradient(backend: Backend, tensors: Sequence[Any], view: View) -> tuple:
    x, grad_output, *parameters = tensors
    call = _Call.of(backend, view, x, grad_output)
    grad_input = backend.empty(call.sets.shape, FLOATS[dtype_name(x)])
    mean, invvar, weight, mean_g, mean_gx = map(call.of_channels, parameters)
    wanted = grad_input, None, None
    operands = kernels.Gradients(call.sets, call.grad_output, call.x, mean, invvar, weight, True, *wanted)
    call.walked.launch_gradient(backend.launch, operands, mean_g, mean_gx)
    return (backend.give_back(grad_input, view.memory),)


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
        """Return the call for arrays that `View.laid` returned."""
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
