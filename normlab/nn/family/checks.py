"""Checks of the arguments of the family's norms, with PyTorch's words for the same mistake.

Called by `normlab.nn.family.functional` before the norm is computed. For instance norm PyTorch's messages count the
weight repeated for every sample, which the caller has not seen; the messages here count the weight that was given.
"""

from math import prod
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from normlab.nn.checks import FLOATS, HALVES, NAMES, argument, not_a_tensor, two_devices
from normlab.nn.family.norms import Given, Norm
from normlab.nn.private import vmap_levels
from normlab.nn.shapes import Parameter


def _takes_empty_sets() -> bool:
    """Return True if this PyTorch takes a group norm without channels, or with empty ones: since 2.14 it raises."""
    try:
        torch.group_norm(torch.empty(1, 0, 1, device="cpu"), 1)
    except RuntimeError:
        return False
    return True


TAKES_EMPTY_SETS = _takes_empty_sets()


def check(function: Any, norm: Norm, given: Given) -> None:
    """Raise PyTorch's error for arguments that PyTorch refuses.

    Raises:
        ValueError: a single value to take a mean of, one running statistic without the other, a batch norm's eps
            that is too small.
        RuntimeError: shapes, dtypes and devices that do not go together, running statistics that are missing or
            require a gradient.
        TypeError: an argument is no tensor, no number or no bool.
        NotImplementedError: the input's dtype has no norms.
    """
    x, running_mean, running_var, weight, bias, momentum, eps = given
    tensors = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, Tensor):
            raise not_a_tensor(function, name, tensor)
    for name, value in {"momentum": momentum, "eps": eps}.items():
        if not isinstance(value, (Real, torch.SymFloat)):
            raise TypeError(f"{argument(function, name)} must be float, not {type(value).__name__}")
    if type(norm.own) is not bool:
        name = "training" if norm.kind == "batch" else "use_input_stats"
        raise TypeError(f"{argument(function, name)} must be bool, not {type(norm.own).__name__}")
    _check_input(function, norm, x)
    if norm.kind == "batch" and norm.own and eps <= 0:  # PyTorch's other norms take any eps
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    if norm.kind == "batch" and eps < 0:
        raise ValueError(f"batch_norm eps must be non-negative, but got {eps}")
    _check_running(norm, running_mean, running_var)
    for name, tensor in tensors.items():
        if tensor is not None:
            _check_shape(norm, name, tensor, x)
            _check_kind(name, tensor, x)
    for one, other in ((weight, bias), (running_mean, running_var)):
        if one is not None and other is not None and one.dtype != other.dtype:
            raise RuntimeError(f"expected scalar type {NAMES[one.dtype]} but found {NAMES[other.dtype]}")
    for name, running in (("running_mean", running_mean), ("running_var", running_var)):
        if running is not None and running.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"The function 'native_batch_norm' is not differentiable with respect to argument '{name}'. "
                "This input cannot have requires_grad True."
            )


def check_batched(norm: Norm, given: Given) -> None:
    """Raise PyTorch's error if vmap batches the input, but not the running statistics that the call has to update."""
    for running in (given.running_mean, given.running_var):
        if norm.own and running is not None and not vmap_levels(given.x) <= vmap_levels(running):
            raise RuntimeError(
                "Batch norm got a batched tensor as input while the running_mean or running_var, which will be updated "
                "in place, were not batched.\nIf you are using a module and do not need eval mode, please set "
                "`track_running_stats` to be False."
            )


def _check_input(function: Any, norm: Norm, x: Tensor) -> None:
    if x.dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {x.dim()}")
    n, c, *spatial = x.shape
    values = prod(spatial) * (n if norm.kind == "batch" else 1)
    if norm.kind == "group":
        groups = norm.groups
        if type(groups) is not int and not isinstance(groups, torch.SymInt):
            raise TypeError(f"{argument(function, 'num_groups')} must be int, not {type(groups).__name__}")
        if groups <= 0:
            raise RuntimeError(f"Expected num groups to be greater than 0, got {groups}")
        for what, size in (("number of channels", c), ("HxW", prod(spatial))):
            if not size and not TAKES_EMPTY_SETS:
                raise RuntimeError(f"Expected {what} to be greater than 0, got {size}")
        if c % groups:
            raise RuntimeError(
                "Expected number of channels in input to be divisible by num_groups, "
                f"but got input of shape {list(x.shape)} and num_groups={groups}"
            )
        values = n * c // groups * prod(spatial)  # over all samples, as PyTorch counts
    if norm.own and values == 1:
        what = "spatial element" if norm.kind == "instance" else "value per channel"
        raise ValueError(f"Expected more than 1 {what} when training, got input size {x.size()}")
    if x.dtype not in FLOATS:
        raise NotImplementedError(f"\"{function.__name__}\" not implemented for '{NAMES.get(x.dtype, x.dtype)}'")


def _check_running(norm: Norm, running_mean: Parameter, running_var: Parameter) -> None:
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    if running_mean is None and not norm.own:
        if norm.kind == "instance":
            raise RuntimeError("Expected running_mean and running_var to be defined when use_input_stats is false")
        raise RuntimeError("running_mean must be defined in evaluation mode")
    for running in (running_mean, running_var):  # checked first, so that both are updated or neither
        if norm.own and running is not None and running.dim() == 1 and len(running) > 1 and running.stride(0) == 0:
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory "
                "location. Please clone() the tensor before performing the operation."
            )


def _check_shape(norm: Norm, name: str, tensor: Tensor, x: Tensor) -> None:
    channels = x.shape[1]
    if norm.kind != "group" and tensor.numel() != channels:
        raise RuntimeError(f"{name} should contain {channels} elements not {tensor.numel()}")
    if tensor.shape != (channels,):
        raise RuntimeError(
            f"Expected {name} to be a vector of size equal to the number of channels in input, "
            f"but got {name} of shape {list(tensor.shape)} and input of shape {list(x.shape)}"
        )


def _check_kind(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise two_devices(x, tensor)
    if tensor.dtype != x.dtype and not (x.dtype in HALVES and tensor.dtype == torch.float32):
        raise RuntimeError(
            f"mixed dtype ({x.device.type.upper()}): expect {name} to have scalar type of {NAMES[x.dtype]}, "
            f"but got {NAMES.get(tensor.dtype, tensor.dtype)}"
        )
