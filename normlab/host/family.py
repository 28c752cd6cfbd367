"""The norm family on arrays: batch, instance, group and layer norm, named and ordered as in torch.nn.functional.

    y = (x - mean_S) invvar_S weight + bias        invvar = 1 / sqrt(var + eps),   x: (N, C, *spatial)

The norms have one formula and differ in the index set S: a channel (batch), a sample's channel (instance), a sample's
group of channels (group), or a sample (layer). They take NumPy arrays, torch tensors and arrays with
`__cuda_array_interface__`, as in `normlab.host.norms`. Arrays with channels last are not copied, and their results have
channels last, too.

dtypes: float16, bfloat16, float32 and float64; parameters have x's dtype, or are float32 with a half x. The output has
x's dtype. Statistics and sums are float32, or float64 for float64. Layer norm is an exception, because it is
`normlab.host.norms`': its output has the parameters' dtype and is contiguous, and a float32 x may have half parameters.
"""

from math import prod
from numbers import Real
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from normlab.host import checks, family_checks, norms, replay
from normlab.host.arrays import FLOATS, Backend, HostBackend, backend_of, dtype_name, is_dense, is_torch
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


@checks.positional("training", "momentum", "eps")
def batch_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    *,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, Any, Any]:
    """Return batch norm with its statistics. A set is a channel.

    Args:
        x: (N, C, *spatial), any strides.
        running_mean, running_var: (C,), or both None, in x's dtype, or float32 with a half x. Training updates them in
            place, running_var with the unbiased variance. Evaluation normalises by them.
        weight, bias: (C,), each may be None.
        training: normalise by the statistics of x.
        momentum: the share of the new statistics in the running ones. For a cumulative average: 1 / (batches so far).
        eps: added to the biased variance.

    Returns:
        (output, mean, invvar): output like x; mean and invvar: (C,), float32 (float64 for float64). In evaluation they
        come from the running statistics.

    Raises:
        ValueError: shapes that do not fit, a single value per channel in training, no running statistics in evaluation.
        TypeError: dtypes without kernels, an argument that is no array.

    >>> output, mean, invvar = batch_norm(np.float32([[1, 0], [3, 0]]), eps=0.0625)
    >>> output[:, 0].round(3), mean, invvar.round(3)
    (array([-0.97,  0.97], dtype=float32), array([2., 0.], dtype=float32), array([0.97, 4.  ], dtype=float32))
    """
    if not training and running_mean is None:
        raise ValueError("running_mean must be defined in evaluation mode")
    return _forward("batch", x, weight, bias, eps, Running(running_mean, running_var, training, momentum))


@checks.positional("use_input_stats", "momentum", "eps")
def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    *,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, Any, Any]:
    """Return instance norm with its statistics. A set is a sample's channel.

    Arguments and errors are those of `batch_norm`; `use_input_stats` is its `training`. The running statistics are
    updated with the average over the samples.

    Returns:
        (output, mean, invvar); mean and invvar: (N, C).
    """
    if not use_input_stats and running_mean is None:
        raise ValueError("Expected running_mean and running_var to be defined when use_input_stats is false")
    return _forward("instance", x, weight, bias, eps, Running(running_mean, running_var, use_input_stats, momentum))


@checks.positional("eps")
def group_norm(
    x: Any, num_groups: SupportsIndex, weight: Any = None, bias: Any = None, *, eps: float = 1e-5
) -> tuple[Any, Any, Any]:
    """Return group norm with its statistics. Otherwise as `batch_norm`.

    A set is a sample's group of C / num_groups neighbouring channels.

    Returns:
        (output, mean, invvar); mean and invvar: (N, num_groups).
    """
    return _forward("group", x, weight, bias, eps, Running(), num_groups)


@checks.positional("eps")
def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5
) -> tuple[Any, Any, Any]:
    """Return layer norm with its statistics, by `normlab.layer_norm_forward`. A set is a sample."""
    return norms.layer_norm_forward(x, normalized_shape, weight, bias, eps=eps)


@checks.positional("training")
def batch_norm_backward(
    grad_output: Any, x: Any, mean: Any, invvar: Any, weight: Any = None, bias: Any = None, *, training: bool = True
) -> tuple[Any, Any, Any]:
    """Return the gradients of `batch_norm`.

    Args:
        grad_output: like x. x, weight, bias, training: the forward's arguments. mean, invvar: the forward's results.

    Returns:
        (grad_input, grad_weight, grad_bias): like x, weight and bias; None for an absent parameter's.

    Raises:
        ValueError, TypeError: as `batch_norm`.
    """
    return _backward("batch", grad_output, x, (mean, invvar), weight, bias, training)


@checks.positional("use_input_stats")
def instance_norm_backward(
    grad_output: Any,
    x: Any,
    mean: Any,
    invvar: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    use_input_stats: bool = True,
) -> tuple[Any, Any, Any]:
    """Return the gradients of `instance_norm`, as `batch_norm_backward` does."""
    return _backward("instance", grad_output, x, (mean, invvar), weight, bias, use_input_stats)


def group_norm_backward(
    grad_output: Any,
    x: Any,
    mean: Any,
    invvar: Any,
    num_groups: SupportsIndex,
    weight: Any = None,
    bias: Any = None,
) -> tuple[Any, Any, Any]:
    """Return the gradients of `group_norm`, as `batch_norm_backward` does."""
    return _backward("group", grad_output, x, (mean, invvar), weight, bias, True, num_groups)


def layer_norm_backward(
    grad_output: Any, x: Any, mean: Any, invvar: Any, normalized_shape: Any, weight: Any = None, bias: Any = None
) -> tuple[Any, Any, Any]:
    """Return the gradients of `layer_norm`, by `normlab.layer_norm_backward`."""
    return norms.layer_norm_backward(grad_output, x, mean, invvar, normalized_shape, weight, bias)


class Running(NamedTuple):
    """The running statistics of a forward; mean and var are None for a norm that has none.

    own: True if the forward normalises by the statistics of x, as in training, and updates the running statistics;
    False if it normalises by the running statistics.
    """

    mean: Any = None
    var: Any = None
    own: Any = True
    momentum: Any = 0.0


class View(NamedTuple):
    """The memory layout of an input: its axes in their order, or with channels last."""

    shape: tuple[int, ...]
    channels_last: bool

    def as_stored(self, array: Any) -> Any:
        """Return an array of x's shape with its axes in the order that x has in memory: a view, not a copy."""
        if not self.channels_last or not _has_axes(array, len(self.shape)):
            return array
        return array.movedim(1, -1) if is_torch(array) else np.moveaxis(array, 1, -1)

    def as_given(self, array: Any) -> Any:
        """Undo `as_stored`: return a result with its axes in x's order."""
        if not is_torch(array):
            return np.moveaxis(array, -1, 1) if self.channels_last else array
        moved = array.movedim(-1, 1) if self.channels_last else array
        return moved.data  # no view for autograd, which would not allow all writes to a view

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return x's shape with the axes in the order that x has in memory."""
        n, c, *spatial = self.shape
        return (n, *spatial, c) if self.channels_last else self.shape

    def sets(self, norm: str, groups: int) -> kernels.Sets:
        """Return the index sets of a norm. groups: of channels; in batch and instance norm each channel is a group."""
        return sets_of(norm, self.shape, groups, self.channels_last)


def view_of(x: Any) -> View:
    """Return the layout of x. An array in neither of the two layouts will be copied to the first, channels second."""
    shape = tuple(getattr(x, "shape", ()))
    last = View(shape, channels_last=True)
    if len(shape) > 2 and _has_axes(x, len(shape)) and not _contiguous(x) and _contiguous(last.as_stored(x)):
        return last
    return View(shape, channels_last=False)


def _has_axes(array: Any, count: int) -> bool:
    """Return True for a dense array or tensor with this number of axes."""
    return (is_torch(array) or isinstance(array, np.ndarray)) and is_dense(array) and array.ndim == count


def _contiguous(array: Any) -> bool:
    return array.is_contiguous() if is_torch(array) else array.flags.c_contiguous


def chains(norm: str, x: Any, num_groups: int | None = None) -> tuple[Chains, Chains]:
    """Return the longest chains of additions over a set and over a channel.

    They are for `oracle.Arithmetic` with statistics="merged".
    """
    view = view_of(x)
    sets = view.sets(norm, num_groups or x.shape[1])
    return kernels.chains(kernels.walk(sets, backend_of({"x": x}, {}).operand(view.as_stored(x), sets.shape)))


def _forward(norm, x, weight, bias, eps, tracking, num_groups=None):
    """Return (output, mean, invvar) of batch, instance or group norm. tracking: `Running`."""
    running_mean, running_var, own, momentum = tracking
    view = view_of(x)
    given = view.as_stored(x), weight, bias, running_mean, running_var
    options = "forward", view.channels_last, bool(own), momentum, num_groups, type(num_groups)
    key, pointers = replay.signature(given, (), eps, norm, *options)
    cached = replay.find(key)
    if cached:
        output, mean, invvar = cached(pointers)
        return view.as_given(output), mean, invvar

    running = {"running_mean": running_mean, "running_var": running_var}
    backend = backend_of({"x": x}, {"weight": weight, "bias": bias, **running})
    groups = family_checks.groups_of(norm, x, num_groups, own)
    n, c, *_ = view.shape
    family_checks.check_parameters(norm, x, weight, bias, **running)
    statistics = FLOATS[checks.statistics_dtype(dtype_name(x))]
    if not isinstance(momentum, Real):
        raise TypeError(f"momentum must be a real number, got {momentum!r}")
    given_eps = eps
    eps, momentum = (checks.rounded_eps(value, statistics.name) for value in (eps, momentum))
    if norm == "batch" and own and given_eps <= 0:  # torch's other norms take any eps
        raise ValueError(f"batch_norm eps must be positive during training, but got {given_eps}")
    if norm == "batch" and given_eps < 0:
        raise ValueError(f"batch_norm eps must be non-negative, but got {given_eps}")
    backend = _caching(backend, key, pointers, num_groups)

    sets = view.sets(norm, groups)
    # Operands of the kernels, C-contiguous: x, weight, bias, and both running statistics.
    held, gamma, beta = (
        backend.operand(given[0], sets.shape),
        backend.operand(weight, (c,)),
        backend.operand(bias, (c,)),
    )
    tracked = backend.operand(running_mean, (c,)), backend.operand(running_var, (c,))
    if own:
        for (name, array), operand in zip(running.items(), tracked, strict=True):
            family_checks.check_updatable(name, array, operand)
        if running_mean is not None and c and _address(running_mean) == _address(running_var):
            raise ValueError("running_mean and running_var must be two arrays, because both are updated in place")
    output = backend.empty(sets.shape, FLOATS[dtype_name(x)])
    make = backend.empty if prod(view.shape) else backend.zeros  # without values, the statistics are 0
    mean, invvar = (make((sets.total,), statistics) for _ in range(2))
    if prod(view.shape):
        walked = kernels.walk(sets, held, output)
        if own:
            variance = None if running_mean is None else backend.empty((sets.total,), statistics)
            operands = kernels.Outputs(sets, held, gamma, beta, eps, mean, variance, invvar, output)
            kernels.forward(backend.launch, backend, walked, operands)
            if variance is not None:
                kernels.launch_update(backend.launch, mean, variance, sets.batches, momentum, *tracked)
                for array, operand in zip(running.values(), tracked, strict=True):
                    _write_back(backend, array, operand)
        else:
            kernels.launch_use(backend.launch, *tracked, eps, mean, invvar)
            walked.launch_output(backend.launch, held, mean, invvar, gamma, beta, output)
    of_sets = (c,) if norm == "batch" else (n, groups)
    result, *found = replay.keep(backend, (output, view.stored_shape), (mean, of_sets), (invvar, of_sets))
    return view.as_given(result), *found


def _backward(norm, grad_output, x, moments, weight, bias, own, num_groups=None):
    """Return (grad_input, grad_weight, grad_bias) of batch, instance or group norm. moments: mean and invvar."""
    mean, invvar = moments
    view = view_of(x)
    given = view.as_stored(grad_output), view.as_stored(x), mean, invvar, weight
    # No kernel reads bias, but grad_bias has its shape and dtype, so both are part of the cache's key.
    like_bias = None if bias is None else (getattr(bias, "dtype", None), getattr(bias, "shape", None))
    options = "backward", view.channels_last, bool(own), num_groups, type(num_groups), like_bias
    key, pointers = replay.signature(given, (), 0.0, norm, *options)
    cached = replay.find(key)
    if cached:
        grad_input, grad_weight, grad_bias = cached(pointers)
        return view.as_given(grad_input), grad_weight, grad_bias

    required = {"x": x, "grad_output": grad_output, "mean": mean, "invvar": invvar}
    backend = backend_of(required, {"weight": weight, "bias": bias})
    groups = family_checks.groups_of(norm, x, num_groups, own)
    n, c, *_ = view.shape
    checks.check_shape("grad_output", grad_output, view.shape, "as x")
    checks.check_dtype("grad_output", grad_output, dtype_name(x), "as x")
    family_checks.check_parameters(norm, x, weight, bias)
    of_sets = (c,) if norm == "batch" else (n, groups)
    statistics = checks.statistics_dtype(dtype_name(x))
    for name, array in {"mean": mean, "invvar": invvar}.items():
        checks.check_shape(name, array, of_sets, "a number for every set")
        checks.check_dtype(name, array, statistics, "statistics are kept in accumulator precision")
    backend = _caching(backend, key, pointers, num_groups)

    sets = view.sets(norm, groups)
    held = backend.operand(given[0], sets.shape), backend.operand(given[1], sets.shape)
    statistics_held = backend.operand(mean, (sets.total,)), backend.operand(invvar, (sets.total,))
    gamma = backend.operand(weight, (c,))
    make = backend.empty if prod(view.shape) else backend.zeros  # a sum over no values is 0
    grad_weight, grad_bias = (
        None if parameter is None else make((c,), FLOATS[dtype_name(parameter)]) for parameter in (weight, bias)
    )
    grad_input = backend.empty(sets.shape, FLOATS[dtype_name(x)])
    if prod(view.shape):
        walked = kernels.walk(sets, *held, grad_input)
        wanted = grad_input, grad_weight, grad_bias
        operands = kernels.Gradients(sets, *held, *statistics_held, gamma, bool(own), *wanted)
        kernels.gradients(backend.launch, backend, walked, operands)
    result, *found = replay.keep(backend, (grad_input, view.stored_shape), (grad_weight, (c,)), (grad_bias, (c,)))
    return view.as_given(result), *found


def _caching(backend: Backend, key: tuple | None, pointers: list[int], num_groups: Any) -> Backend:
    """Return `replay.caching`'s backend, or the plain one if num_groups is a tensor, whose hash hides its value."""
    plain = num_groups is None or isinstance(num_groups, (int, np.integer))
    return replay.caching(backend, key, pointers) if plain else backend


def _address(array: Any) -> int:
    """Return the address of an array's first element."""
    if is_torch(array):
        return array.data_ptr()
    return array.ctypes.data if isinstance(array, np.ndarray) else array.__cuda_array_interface__["data"][0]


def _write_back(backend: Backend, array: Any, operand: Any) -> None:
    """Copy an operand to the caller's array after a kernel has written it, if the operand is a copy of the array."""
    if isinstance(backend, HostBackend):
        new = backend.give_back(operand, tuple(array.shape))
        if is_torch(array):
            array.detach().copy_(new)
        else:
            array[...] = new
    elif is_torch(array) and operand.pointer != array.data_ptr():
        array.detach().copy_(operand.owner)
