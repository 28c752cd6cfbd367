"""The norm family on arrays: batch, instance, group and layer norm, named and ordered as in torch.nn.functional.

    y = (x - mean_S) invvar_S weight + bias        invvar = 1 / sqrt(var + eps),   x: (N, C, *spatial)

One formula, four index sets S: a channel (batch), a sample's channel (instance), a sample's group of channels (group),
a sample (layer). NumPy arrays, torch tensors and arrays with `__cuda_array_interface__` alike, as in `normlab.ops`,
whose layer norm this one is. Arrays with channels last are taken as they lie in memory, and results lie likewise.

dtypes: float16, bfloat16, float32 and float64; parameters have x's dtype, or are float32 with a half x. The output has
x's dtype; statistics and sums are float32, float64 for float64.
"""

from math import prod
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from normlab import arguments, ops, replay
from normlab.arrays import FLOATS, Home, HostHome, InterfaceHome, dtype_name, home_of, is_torch
from normlab.kernels import family as kernels

__all__ = [
    "batch_norm",
    "batch_norm_backward",
    "group_norm",
    "group_norm_backward",
    "instance_norm",
    "instance_norm_backward",
    "layer_norm",
    "layer_norm_backward",
]


def batch_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, Any, Any]:
    """Batch norm: a set is a channel.

    Args:
        x: (N, C, *spatial), any strides.
        running_mean, running_var: (C,), or None, x's dtype or a parameter's. Training: updated in place, var with the
            unbiased variance; else used.
        weight, bias: (C,), each may be None.
        training: use the statistics of x.
        momentum: the new statistics' share in the running ones. For a cumulative average: 1 / (batches so far).
        eps: added to the biased variance.

    Returns:
        (output, mean, invvar): output like x; mean and invvar: (C,), float32 (float64 for float64). In evaluation they
        are the running ones.

    Raises:
        ValueError: shapes that do not fit, a single value a channel in training, no running statistics in evaluation.
        TypeError: dtypes without kernels, something that is no array.

    >>> output, mean, invvar = batch_norm(np.float32([[1, 0], [3, 0]]), eps=0.0625)
    >>> output[:, 0].round(3), mean, invvar.round(3)
    (array([-0.97,  0.97], dtype=float32), array([2., 0.], dtype=float32), array([0.97, 4.  ], dtype=float32))
    """
    if not training and (running_mean is None or running_var is None):
        raise ValueError("Expected running_mean and running_var to be defined when training=False")
    return _forward("batch", x, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, Any, Any]:
    """Instance norm: a set is a sample's channel. Arguments and errors as `batch_norm`; `use_input_stats`: its training.

    Running statistics are updated with the average over the samples.

    Returns:
        (output, mean, invvar); mean and invvar: (N, C).
    """
    if not use_input_stats and (running_mean is None or running_var is None):
        raise ValueError("Expected running_mean and running_var to be defined when use_input_stats is false")
    return _forward("instance", x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def group_norm(
    x: Any, num_groups: SupportsIndex, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Any, Any, Any]:
    """Group norm: a set is a sample's group of C / num_groups neighbouring channels. Otherwise as `batch_norm`.

    Returns:
        (output, mean, invvar); mean and invvar: (N, num_groups).
    """
    return _forward("group", x, None, None, weight, bias, True, 0.0, eps, num_groups)


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Any, Any, Any]:
    """Layer norm: a set is a sample. As `normlab.layer_norm_forward`, which has more kinds of dtypes."""
    return ops.layer_norm_forward(x, normalized_shape, weight, bias, eps)


def batch_norm_backward(
    grad_output: Any, x: Any, mean: Any, invvar: Any, weight: Any = None, bias: Any = None, training: bool = True
) -> tuple[Any, Any, Any]:
    """Gradients of `batch_norm`.

    Args:
        grad_output: like x. x, weight, bias, training: the forward's. mean, invvar: what it returned.

    Returns:
        (grad_input, grad_weight, grad_bias): like x, weight and bias; None for an absent parameter.

    Raises:
        ValueError, TypeError: as `batch_norm`.
    """
    return _backward("batch", grad_output, x, mean, invvar, weight, bias, training)


def instance_norm_backward(
    grad_output: Any, x: Any, mean: Any, invvar: Any, weight: Any = None, bias: Any = None, use_input_stats: bool = True
) -> tuple[Any, Any, Any]:
    """Gradients of `instance_norm`, as `batch_norm_backward`."""
    return _backward("instance", grad_output, x, mean, invvar, weight, bias, use_input_stats)


def group_norm_backward(
    grad_output: Any,
    x: Any,
    mean: Any,
    invvar: Any,
    num_groups: SupportsIndex,
    weight: Any = None,
    bias: Any = None,
) -> tuple[Any, Any, Any]:
    """Gradients of `group_norm`, as `batch_norm_backward`."""
    return _backward("group", grad_output, x, mean, invvar, weight, bias, True, num_groups)


def layer_norm_backward(
    grad_output: Any, x: Any, mean: Any, invvar: Any, normalized_shape: Any, weight: Any = None, bias: Any = None
) -> tuple[Any, Any, Any]:
    """Gradients of `layer_norm`, as `normlab.layer_norm_backward`."""
    return ops.layer_norm_backward(grad_output, x, mean, invvar, normalized_shape, weight, bias)


class _View(NamedTuple):
    """How x lies in memory."""

    shape: tuple[int, ...]
    channels_last: bool

    def laid(self, array: Any) -> Any:
        """An array like x with its axes as x has them in memory."""
        if not self.channels_last:
            return array
        return array.movedim(1, -1) if is_torch(array) else np.moveaxis(array, 1, -1)

    def back(self, array: Any) -> Any:
        """The other way round."""
        if not self.channels_last:
            return array
        return array.movedim(-1, 1) if is_torch(array) else np.moveaxis(array, -1, 1)

    @property
    def memory(self) -> tuple[int, ...]:
        """The shape in memory."""
        n, c, *spatial = self.shape
        return (n, *spatial, c) if self.channels_last else self.shape

    def sets(self, norm: str, groups: int) -> kernels.Sets:
        """The index sets of a norm; groups: of channels, for batch and instance norm as many as channels."""
        n, c, *spatial = self.shape
        across, run = (prod(spatial), 1) if self.channels_last else (1, prod(spatial))
        batches, outer = (1, n * across) if norm == "batch" else (n, across)
        return kernels.Sets(batches, outer, groups, c // groups, run)


def _view_of(x: Any) -> _View:
    shape = tuple(x.shape)
    if len(shape) < 3 or not (is_torch(x) or isinstance(x, np.ndarray)) or _contiguous(x):
        return _View(shape, channels_last=False)
    last = _View(shape, channels_last=True)
    return last if _contiguous(last.laid(x)) else _View(shape, channels_last=False)


def _contiguous(array: Any) -> bool:
    return array.is_contiguous() if is_torch(array) else array.flags.c_contiguous


def _forward(norm, x, running_mean, running_var, weight, bias, own, momentum, eps, num_groups=None):
    home = home_of(
        {"x": x}, {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    )
    view = _view_of(x)
    running = running_mean, running_var
    given = view.laid(x), weight, bias, *running
    options = norm, "forward", view.channels_last, bool(own), momentum, num_groups
    key, pointers = replay.signature(given, (), eps, norm, *options)
    recording = replay.find(key)
    if recording:
        output, mean, invvar = recording(pointers)
        return view.back(output), mean, invvar

    groups = _check(norm, x, weight, bias, num_groups, own)
    c = x.shape[1]
    for name, array in (("running_mean", running_mean), ("running_var", running_var)):
        _check_parameter(name, array, c, x, weight)
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must both be given, or neither")
    momentum = arguments.number(momentum) if isinstance(momentum, (int, float)) else _refuse_momentum(momentum)
    statistics = FLOATS[arguments.statistics_dtype(dtype_name(x))]
    eps = arguments.rounded_eps(eps, statistics.name)
    home = replay.recorded(home, key, pointers)

    sets = view.sets(norm, groups)
    held = home.operand(given[0], sets.shape)
    parameters = home.operand(weight, (c,)), home.operand(bias, (c,))
    tracked = home.operand(running_mean, (c,)), home.operand(running_var, (c,))
    output = home.empty(sets.shape, FLOATS[dtype_name(x)])
    make = home.empty if prod(x.shape) else home.zeros  # the statistics of nothing
    mean, invvar = (make((sets.count,), statistics) for _ in range(2))
    if prod(x.shape):
        walked = kernels.walk(sets, held, output)
        if own:
            variance = None if running_mean is None else home.empty((sets.count,), statistics)
            kernels.statistics(home.launch, home, walked, held, eps, mean, variance, invvar)
            if variance is not None:
                kernels.launch_update(home.launch, mean, variance, sets.batches, statistics.type(momentum), *tracked)
                for array, operand in zip(running, tracked, strict=True):
                    _write_back(home, array, operand)
        else:
            kernels.launch_use(home.launch, *tracked, eps, mean, invvar)
        walked.launch_output(home.launch, held, mean, invvar, *parameters, output)
    of_sets = (c,) if norm == "batch" else (x.shape[0], groups)
    results = (
        home.give_back(output, view.memory),
        home.give_back(mean, of_sets),
        home.give_back(invvar, of_sets),
    )
    replay.keep(home)
    return view.back(results[0]), *results[1:]


def _backward(norm, grad_output, x, mean, invvar, weight, bias, own, num_groups=None):
    required = {"x": x, "grad_output": grad_output, "mean": mean, "invvar": invvar}
    home = home_of(required, {"weight": weight, "bias": bias})
    view = _view_of(x)
    arguments.check_shape("grad_output", grad_output, view.shape, "as x")
    given = view.laid(grad_output), view.laid(x), mean, invvar, weight
    options = norm, "backward", view.channels_last, bool(own), num_groups, weight is None, bias is None
    key, pointers = replay.signature(given, (), 0.0, norm, *options)
    recording = replay.find(key)
    if recording:
        grad_input, grad_weight, grad_bias = recording(pointers)
        return view.back(grad_input), grad_weight, grad_bias

    groups = _check(norm, x, weight, bias, num_groups, own)
    c = x.shape[1]
    arguments.check_dtype("grad_output", grad_output, dtype_name(x), "as x")
    of_sets = (c,) if norm == "batch" else (x.shape[0], groups)
    statistics = arguments.statistics_dtype(dtype_name(x))
    for name, array in (("mean", mean), ("invvar", invvar)):
        arguments.check_shape(name, array, of_sets, "a number for every set")
        arguments.check_dtype(name, array, statistics, "statistics are kept in accumulator precision")
    home = replay.recorded(home, key, pointers)

    sets = view.sets(norm, groups)
    held = home.operand(given[0], sets.shape), home.operand(given[1], sets.shape)
    moments = home.operand(mean, (sets.count,)), home.operand(invvar, (sets.count,))
    gamma = home.operand(weight, (c,))
    make = home.empty if prod(x.shape) else home.zeros  # a sum over no values is 0
    grad_weight, grad_bias = (
        None if parameter is None else make((c,), FLOATS[dtype_name(parameter)]) for parameter in (weight, bias)
    )
    grad_input = home.empty(sets.shape, FLOATS[dtype_name(x)])
    if prod(x.shape):
        walked = kernels.walk(sets, *held, grad_input)
        kernels.gradients(
            home.launch, home, walked, *held, *moments, gamma, bool(own), grad_input, grad_weight, grad_bias
        )
    results = (
        home.give_back(grad_input, view.memory),
        home.give_back(grad_weight, (c,)),
        home.give_back(grad_bias, (c,)),
    )
    replay.keep(home)
    return view.back(results[0]), *results[1:]


def _check(norm: str, x: Any, weight: Any, bias: Any, num_groups: Any, own: bool) -> int:
    """Raise unless a norm can be taken of x, else say how many groups of channels there are."""
    shape = tuple(x.shape)
    if len(shape) < 2:
        raise ValueError(f"Expected at least 2 dimensions for input tensor but received {len(shape)}")
    n, c, *spatial = shape
    groups = c
    if norm == "group":
        groups = arguments.shape_of(num_groups)[0] if not isinstance(num_groups, int) else num_groups
        if groups <= 0:
            raise ValueError(f"Expected num groups to be greater than 0, got {groups}")
        if c % groups:
            raise ValueError(
                "Expected number of channels in input to be divisible by num_groups, "
                f"but got input of shape {list(shape)} and num_groups={groups}"
            )
    values = {"batch": n * prod(spatial), "instance": prod(spatial), "group": c // max(groups, 1) * prod(spatial)}[norm]
    if own and values == 1:
        what = "spatial element" if norm == "instance" else "value per channel"
        raise ValueError(f"Expected more than 1 {what} when training, got input size {list(shape)}")
    if dtype_name(x) not in FLOATS:
        raise TypeError(f"x must be one of {', '.join(FLOATS)}, but got {dtype_name(x)}")
    for name, array in (("weight", weight), ("bias", bias)):
        _check_parameter(name, array, c, x, weight)
    return groups


def _check_parameter(name: str, array: Any, channels: int, x: Any, weight: Any) -> None:
    if array is None:
        return
    if tuple(array.shape) != (channels,):
        raise ValueError(f"{name} should contain {channels} elements not {prod(array.shape)}")
    dtype, kind = dtype_name(x), dtype_name(array)
    if kind != dtype and not (dtype in arguments.HALVES and kind == "float32"):
        raise TypeError(f"x is {dtype} and {name} is {kind}: they must have one dtype, or {name} is float32 and x half")
    if name == "bias" and weight is not None:
        arguments.check_dtype("bias", array, dtype_name(weight), "as weight")


def _refuse_momentum(momentum: Any) -> float:
    raise TypeError(f"momentum must be a real number, got {momentum!r}")


def _write_back(home: Home, array: Any, operand: Any) -> None:
    """Bring what a kernel has written to the caller's array, where the operand is a copy of it."""
    if isinstance(home, HostHome):
        new = home.give_back(operand, tuple(array.shape))
        if is_torch(array):
            array.detach().copy_(new)
        else:
            array[...] = new
    elif isinstance(home, InterfaceHome):
        if operand.pointer != array.__cuda_array_interface__["data"][0]:
            raise ValueError("running statistics must be contiguous, because they are updated in place")
    elif operand.pointer != array.data_ptr():
        array.detach().copy_(operand.owner)
