"""The norm family on arrays: batch, instance, group and layer norm, named and ordered as in torch.nn.functional.

    y = (x - mean_S) invvar_S weight + bias        invvar = 1 / sqrt(var + eps),   x: (N, C, *spatial)

One formula, four index sets S: a channel (batch), a sample's channel (instance), a sample's group of channels (group),
a sample (layer). NumPy arrays, torch tensors and arrays with `__cuda_array_interface__` alike, as in
`normlab.host.norms`, whose layer norm this one is. Arrays with channels last are taken as they lie in memory, and
results lie likewise.

dtypes: float16, bfloat16, float32 and float64; parameters have x's dtype, or are float32 with a half x. The output has
x's dtype; statistics and sums are float32, float64 for float64. But for layer norm, which is `normlab.host.norms`': its
output has the parameters' dtype, half ones with a float32 x too, and lies row after row.
"""

from math import prod
from numbers import Real
from operator import index
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from normlab.host import checks, norms, replay
from normlab.host.arrays import FLOATS, Home, HostHome, dtype_name, home_of, is_dense, is_torch
from normlab.host.index_sets import plot_index_sets
from normlab.kernels import family as kernels
from normlab.kernels.family.sets import sets_of
from normlab.kernels.plan import Chains

__all__ = [
    "batch_norm",
    "batch_norm_backward",
    "group_norm",
    "group_norm_backward",
    "instance_norm",
    "instance_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "plot_index_sets",
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
    if not training and running_mean is None:
        raise ValueError("running_mean must be defined in evaluation mode")
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
    """Instance norm: a set is a sample's channel.

    Arguments and errors as `batch_norm`, whose `training` is `use_input_stats`. Running statistics are updated with the
    average over the samples.

    Returns:
        (output, mean, invvar); mean and invvar: (N, C).
    """
    if not use_input_stats and running_mean is None:
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
    """Layer norm: a set is a sample. It is `normlab.layer_norm_forward`, dtypes and memory layout as there."""
    return norms.layer_norm_forward(x, normalized_shape, weight, bias, eps)


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
    return norms.layer_norm_backward(grad_output, x, mean, invvar, normalized_shape, weight, bias)


class View(NamedTuple):
    """How an input lies in memory: as it is, or with its channels last."""

    shape: tuple[int, ...]
    channels_last: bool

    def laid(self, array: Any) -> Any:
        """An array like x with its axes in the order that x has in memory."""
        if not self.channels_last or not _has_axes(array, len(self.shape)):
            return array
        return array.movedim(1, -1) if is_torch(array) else np.moveaxis(array, 1, -1)

    def back(self, array: Any) -> Any:
        """The other way round, for a result. A tensor is no view: an autograd function's output can be written to."""
        if not is_torch(array):
            return np.moveaxis(array, -1, 1) if self.channels_last else array
        moved = array.movedim(-1, 1) if self.channels_last else array
        return moved.data if moved._is_view() else moved

    @property
    def memory(self) -> tuple[int, ...]:
        """The shape in memory."""
        n, c, *spatial = self.shape
        return (n, *spatial, c) if self.channels_last else self.shape

    def sets(self, norm: str, groups: int) -> kernels.Sets:
        """The index sets of a norm; groups: of channels, for batch and instance norm as many as channels."""
        return sets_of(norm, self.shape, groups, self.channels_last)


def view_of(x: Any) -> View:
    """How x lies; what lies in neither of the two ways is copied to the first."""
    shape = tuple(getattr(x, "shape", ()))
    last = View(shape, channels_last=True)
    if len(shape) > 2 and _has_axes(x, len(shape)) and not _contiguous(x) and _contiguous(last.laid(x)):
        return last
    return View(shape, channels_last=False)


def _has_axes(array: Any, count: int) -> bool:
    """Is this an array whose axes can be moved, and has it so many?"""
    return (is_torch(array) or isinstance(array, np.ndarray)) and is_dense(array) and array.ndim == count


def _contiguous(array: Any) -> bool:
    return array.is_contiguous() if is_torch(array) else array.flags.c_contiguous


def chains(norm: str, x: Any, num_groups: int | None = None) -> tuple[Chains, Chains]:
    """The longest chains of additions over a set, and over a channel: for `oracle.Arithmetic`, statistics "merged"."""
    view = view_of(x)
    sets = view.sets(norm, num_groups or x.shape[1])
    return kernels.chains(kernels.walk(sets, home_of({"x": x}, {}).operand(view.laid(x), sets.shape)))


def _forward(norm, x, running_mean, running_var, weight, bias, own, momentum, eps, num_groups=None):
    view = view_of(x)
    given = view.laid(x), weight, bias, running_mean, running_var
    options = "forward", view.channels_last, bool(own), momentum, num_groups, type(num_groups)
    key, pointers = replay.signature(given, (), eps, norm, *options)
    recording = replay.find(key)
    if recording:
        output, mean, invvar = recording(pointers)
        return view.back(output), mean, invvar

    running = {"running_mean": running_mean, "running_var": running_var}
    home = home_of({"x": x}, {"weight": weight, "bias": bias, **running})
    groups = _groups(norm, x, num_groups, own)
    n, c, *_ = view.shape
    for name, array in {"weight": weight, "bias": bias, **running}.items():
        _check_parameter(norm, name, array, x)
    _check_pair("weight", weight, "bias", bias)
    _check_pair("running_mean", running_mean, "running_var", running_var)
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    statistics = FLOATS[checks.statistics_dtype(dtype_name(x))]
    if not isinstance(momentum, Real):
        raise TypeError(f"momentum must be a real number, got {momentum!r}")
    given_eps = eps
    eps, momentum = (checks.rounded_eps(value, statistics.name) for value in (eps, momentum))
    if norm == "batch" and own and given_eps <= 0:  # of its other norms torch takes any
        raise ValueError(f"batch_norm eps must be positive during training, but got {given_eps}")
    if norm == "batch" and given_eps < 0:
        raise ValueError(f"batch_norm eps must be non-negative, but got {given_eps}")
    home = _recorded(home, key, pointers, num_groups)

    sets = view.sets(norm, groups)
    held, gamma, beta = home.operand(given[0], sets.shape), home.operand(weight, (c,)), home.operand(bias, (c,))
    tracked = home.operand(running_mean, (c,)), home.operand(running_var, (c,))
    if own:
        for (name, array), operand in zip(running.items(), tracked, strict=True):
            _check_updatable(name, array, operand)
        if running_mean is not None and c and _address(running_mean) == _address(running_var):
            raise ValueError("running_mean and running_var must be two arrays, because both are updated in place")
    output = home.empty(sets.shape, FLOATS[dtype_name(x)])
    make = home.empty if prod(view.shape) else home.zeros  # nothing has no statistics
    mean, invvar = (make((sets.total,), statistics) for _ in range(2))
    if prod(view.shape):
        walked = kernels.walk(sets, held, output)
        if own:
            variance = None if running_mean is None else home.empty((sets.total,), statistics)
            kernels.forward(home.launch, home, walked, held, gamma, beta, eps, mean, variance, invvar, output)
            if variance is not None:
                kernels.launch_update(home.launch, mean, variance, sets.batches, momentum, *tracked)
                for array, operand in zip(running.values(), tracked, strict=True):
                    _write_back(home, array, operand)
        else:
            kernels.launch_use(home.launch, *tracked, eps, mean, invvar)
            walked.launch_output(home.launch, held, mean, invvar, gamma, beta, output)
    of_sets = (c,) if norm == "batch" else (n, groups)
    results = home.give_back(output, view.memory), home.give_back(mean, of_sets), home.give_back(invvar, of_sets)
    replay.keep(home)
    return view.back(results[0]), *results[1:]


def _backward(norm, grad_output, x, mean, invvar, weight, bias, own, num_groups=None):
    view = view_of(x)
    given = view.laid(grad_output), view.laid(x), mean, invvar, weight
    like_bias = None if bias is None else (getattr(bias, "dtype", None), getattr(bias, "shape", None))
    options = "backward", view.channels_last, bool(own), num_groups, type(num_groups), like_bias
    key, pointers = replay.signature(given, (), 0.0, norm, *options)
    recording = replay.find(key)
    if recording:
        grad_input, grad_weight, grad_bias = recording(pointers)
        return view.back(grad_input), grad_weight, grad_bias

    required = {"x": x, "grad_output": grad_output, "mean": mean, "invvar": invvar}
    home = home_of(required, {"weight": weight, "bias": bias})
    groups = _groups(norm, x, num_groups, own)
    n, c, *_ = view.shape
    checks.check_shape("grad_output", grad_output, view.shape, "as x")
    checks.check_dtype("grad_output", grad_output, dtype_name(x), "as x")
    for name, array in {"weight": weight, "bias": bias}.items():
        _check_parameter(norm, name, array, x)
    _check_pair("weight", weight, "bias", bias)
    of_sets = (c,) if norm == "batch" else (n, groups)
    statistics = checks.statistics_dtype(dtype_name(x))
    for name, array in {"mean": mean, "invvar": invvar}.items():
        checks.check_shape(name, array, of_sets, "a number for every set")
        checks.check_dtype(name, array, statistics, "statistics are kept in accumulator precision")
    home = _recorded(home, key, pointers, num_groups)

    sets = view.sets(norm, groups)
    held = home.operand(given[0], sets.shape), home.operand(given[1], sets.shape)
    moments = home.operand(mean, (sets.total,)), home.operand(invvar, (sets.total,))
    gamma = home.operand(weight, (c,))
    make = home.empty if prod(view.shape) else home.zeros  # a sum over no values is 0
    grad_weight, grad_bias = (
        None if parameter is None else make((c,), FLOATS[dtype_name(parameter)]) for parameter in (weight, bias)
    )
    grad_input = home.empty(sets.shape, FLOATS[dtype_name(x)])
    if prod(view.shape):
        walked = kernels.walk(sets, *held, grad_input)
        wanted = grad_input, grad_weight, grad_bias
        kernels.gradients(home.launch, home, walked, *held, *moments, gamma, bool(own), *wanted)
    results = [home.give_back(grad_input, view.memory)]
    results += [home.give_back(gradient, (c,)) for gradient in (grad_weight, grad_bias)]
    replay.keep(home)
    return view.back(results[0]), *results[1:]


def _recorded(home: Home, key: tuple | None, pointers: list[int], num_groups: Any) -> Home:
    """`replay.recorded`, unless the key does not tell how many groups: a tensor's hash says nothing of its value."""
    plain = num_groups is None or isinstance(num_groups, (int, np.integer))
    return replay.recorded(home, key, pointers) if plain else home


def _groups(norm: str, x: Any, num_groups: Any, own: bool) -> int:
    """Raise unless a norm can be taken of x; else say how many groups its channels form."""
    shape = tuple(x.shape)
    if len(shape) < 2:
        raise ValueError(f"Expected at least 2 dimensions for input tensor but received {len(shape)}")
    n, c, *spatial = shape
    groups = c
    if norm == "group":
        if not isinstance(num_groups, SupportsIndex):
            raise TypeError(f"num_groups must be an int, got {num_groups!r}")
        groups = index(num_groups)
        if groups <= 0:
            raise ValueError(f"Expected num groups to be greater than 0, got {groups}")
        if c % groups:
            raise ValueError(
                "Expected number of channels in input to be divisible by num_groups, "
                f"but got input of shape {list(shape)} and num_groups={groups}"
            )
    # of a set; for group norm torch counts all samples' values, and so do we
    values = prod(spatial) * {"batch": n, "instance": 1, "group": n * (c // max(groups, 1))}[norm]
    if own and values == 1:
        what = "spatial element" if norm == "instance" else "value per channel"
        raise ValueError(f"Expected more than 1 {what} when training, got input size {list(shape)}")
    if dtype_name(x) not in FLOATS:
        raise TypeError(f"x must be one of {', '.join(FLOATS)}, but got {dtype_name(x)}")
    return groups


def _check_parameter(norm: str, name: str, array: Any, x: Any) -> None:
    """Raise unless there is nothing, or an element for every channel, in x's dtype or float32 beside a half."""
    if array is None:
        return
    channels = x.shape[1]
    if tuple(array.shape) != (channels,):
        if norm == "group":
            raise ValueError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, "
                f"but got {name} of shape {list(array.shape)} and input of shape {list(x.shape)}"
            )
        raise ValueError(f"{name} should contain {channels} elements not {prod(array.shape)}")
    dtype, kind = dtype_name(x), dtype_name(array)
    if kind != dtype and not (dtype in checks.HALVES and kind == "float32"):
        raise TypeError(f"x is {dtype} and {name} is {kind}: {name} must be {dtype}, or float32 if x is half")


def _check_pair(name: str, array: Any, other_name: str, other: Any) -> None:
    if array is not None:
        checks.check_dtype(other_name, other, dtype_name(array), f"as {name}")


def _check_updatable(name: str, array: Any, operand: Any) -> None:
    """Raise before anything is launched if a running statistic cannot be written to, so that neither is."""
    if array is None:
        return
    if is_torch(array) or isinstance(array, np.ndarray):
        (stride,) = array.stride() if is_torch(array) else array.strides
        if stride == 0 and array.shape[0] > 1:
            raise ValueError(f"{name} must have a place for every element, because it is updated in place")
        if not is_torch(array) and not array.flags.writeable:
            raise ValueError(f"{name} must be writable, because it is updated in place")
    elif operand.pointer != array.__cuda_array_interface__["data"][0]:
        raise ValueError(f"{name} must be contiguous, because it is updated in place")


def _address(array: Any) -> int:
    """Where an array's first element lies."""
    if is_torch(array):
        return array.data_ptr()
    return array.ctypes.data if isinstance(array, np.ndarray) else array.__cuda_array_interface__["data"][0]


def _write_back(home: Home, array: Any, operand: Any) -> None:
    """Bring what a kernel has written to the caller's array, where the operand is a copy of it."""
    if isinstance(home, HostHome):
        new = home.give_back(operand, tuple(array.shape))
        if is_torch(array):
            array.detach().copy_(new)
        else:
            array[...] = new
    elif is_torch(array) and operand.pointer != array.data_ptr():
        array.detach().copy_(operand.owner)
