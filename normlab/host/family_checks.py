"""Checks of the arguments of `normlab.host.family`: groups, parameters and running statistics."""

from math import prod
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from normlab.host import checks
from normlab.host.arrays import FLOATS, dtype_name, is_torch


def groups_of(norm: str, x: Any, num_groups: Any, own: bool) -> int:
    """Return the number of groups of x's channels; raise unless the norm of x can be computed."""
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
    # the values of a set, except that for group norm torch counts all samples' values, and so do we
    values = prod(spatial) * {"batch": n, "instance": 1, "group": n * (c // max(groups, 1))}[norm]
    if own and values == 1:
        what = "spatial element" if norm == "instance" else "value per channel"
        raise ValueError(f"Expected more than 1 {what} when training, got input size {list(shape)}")
    if dtype_name(x) not in FLOATS:
        raise TypeError(f"x must be one of {', '.join(FLOATS)}, but got {dtype_name(x)}")
    return groups


def check_parameters(
    norm: str, x: Any, weight: Any, bias: Any, running_mean: Any = None, running_var: Any = None
) -> None:
    """Raise unless the parameters and the running statistics fit x and each other."""
    pairs = {"weight": weight, "bias": bias}, {"running_mean": running_mean, "running_var": running_var}
    for pair in pairs:
        for name, array in pair.items():
            check_parameter(norm, name, array, x)
    for (name, array), (other_name, other) in (pair.items() for pair in pairs):
        if array is not None:
            checks.check_dtype(other_name, other, dtype_name(array), f"as {name}")
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")


def check_parameter(norm: str, name: str, array: Any, x: Any) -> None:
    """Raise unless a parameter is None, or has an element per channel in x's dtype, or in float32 for a half x."""
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


def check_updatable(name: str, array: Any, operand: Any) -> None:
    """Raise if a running statistic cannot be written to. The check precedes all launches, so neither is changed."""
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
