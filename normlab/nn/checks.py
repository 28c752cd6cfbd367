"""Checks of a norm's arguments, with PyTorch's words for the same mistake.

Called by `normlab.nn.functional` before the norm is computed.
"""

from collections.abc import Callable
from inspect import signature
from numbers import Real
from operator import index
from typing import Any

import torch
from torch import Tensor

from normlab.nn.shapes import Parameter, Shape

MODES, MODE_TYPES = (False, True, "exact"), (bool, str)  # the types, because 0 and 1 are equal to two modes
# PyTorch's errors call dtypes by these names.
FLOATS = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}
NAMES = FLOATS | {
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
HALVES = (torch.float16, torch.bfloat16)
MIXED = tuple({torch.float32, half} for half in HALVES)  # dtypes of input and parameters that the kernels mix

Function = Callable[..., Tensor]
"""The public function that was called: errors tell its name and the positions of its arguments."""


def check_mode(memory_efficient: object) -> None:
    """Raise ValueError unless memory_efficient is False, True or "exact"."""
    if type(memory_efficient) not in MODE_TYPES or memory_efficient not in MODES:
        raise ValueError(f'memory_efficient must be False, True or "exact", got {memory_efficient!r}')


def check_module(function: str, model: object) -> None:
    """Raise TypeError unless a function's model is a module."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{function}(): argument 'model' (position 1) must be a torch.nn.Module, not {type(model).__name__}"
        )


def check(
    function: Function,
    x: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: object,
) -> None:
    """Raise PyTorch's error for shapes that do not fit, for a parameter that is no tensor, or an eps that is no number.

    It is a TypeError for a wrong type and a RuntimeError for shapes. Too few dimensions are a ValueError in rms_norm.
    """
    if type(eps) is not float and not isinstance(eps, (Real, torch.SymFloat)):  # Real alone takes a microsecond
        raise TypeError(f"{argument(function, 'eps')} must be float, not {type(eps).__name__}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        if not isinstance(parameter, Tensor):
            raise not_a_tensor(function, name, parameter)
        if parameter.shape != shape:
            _rms_norm_tells(function, x, shape, weight)
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(parameter.shape)} and normalized_shape = {list(shape)}"
            )
    check_size(function, x, shape, weight)


def check_size(function: Function, x: Tensor, shape: Shape, weight: Parameter = None) -> None:
    """Raise PyTorch's error unless the last dimensions of x are the normalized_shape `shape`."""
    if x.shape[-len(shape) :] != shape:
        _rms_norm_tells(function, x, shape, weight)
        expected = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [{expected}], "
            f"but got input of size{list(x.shape)}"
        )


def _rms_norm_tells(function: Function, x: Tensor, shape: Shape, weight: Parameter) -> None:
    """Let PyTorch raise its error for an RMS norm's shapes: its words are not layer_norm's, and versions differ."""
    if "rms_norm" in function.__name__:
        gamma = None if weight is None else torch.empty(weight.shape, device="meta")
        torch.rms_norm(torch.empty(x.shape, device="meta"), list(shape), gamma)


def check_kinds(function: Function, x: Tensor, weight: Parameter, bias: Parameter) -> None:
    """Raise PyTorch's error for dtypes or devices that do not go together."""
    dtype, device = x.dtype, x.device
    if dtype not in FLOATS:
        rms = "rms_norm" in function.__name__
        others = [one for one in (weight, bias) if one is not None and one.dtype is not dtype]
        # PyTorch names the mix first, except for float8, whose parameters may be wider.
        if not rms and others and not dtype.is_floating_point:
            raise RuntimeError(f"mixed dtype ({device.type.upper()}): all inputs must share same datatype.")
        kernel = "rms_norm" if rms else "LayerNormKernelImpl"
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{NAMES.get(dtype, dtype)}'")
    for parameter in (weight, bias):
        if parameter is None:
            continue
        if parameter.device != device:
            raise two_devices(x, parameter)
        if parameter.dtype is not dtype and {dtype, parameter.dtype} not in MIXED:
            raise RuntimeError(
                f"mixed dtype ({device.type.upper()}): expect parameter to have scalar type of {NAMES[dtype]}, "
                f"but got {NAMES.get(parameter.dtype, parameter.dtype)}"
            )
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise RuntimeError(f"expected scalar type {NAMES[weight.dtype]} but found {NAMES[bias.dtype]}")


def mixed_by_pytorch_alone(x: Tensor, weight: Tensor) -> bool:
    """Return True for a mix of dtypes that PyTorch's rms_norm takes and the kernels do not."""
    mix = {x.dtype, weight.dtype}
    return len(mix) == 2 and mix not in MIXED and mix <= FLOATS.keys() and x.device == weight.device


def not_a_tensor(function: Function, name: str, given: object) -> TypeError:
    """Return PyTorch's TypeError for an argument that is no tensor."""
    return TypeError(f"{argument(function, name)} must be Tensor, not {type(given).__name__}")


def two_devices(one: Tensor, other: Tensor) -> RuntimeError:
    """Return PyTorch's error for tensors on two devices."""
    found = f"{one.device} and {other.device}"
    return RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {found}!")


def shape_of(function: Function, normalized_shape: Any) -> Shape:
    """Return normalized_shape as a tuple of at least one int. A single int counts as a tuple of one."""
    if isinstance(normalized_shape, (int, torch.SymInt)):  # the only test that Dynamo's sizes pass
        normalized_shape = (normalized_shape,)
    elif type(normalized_shape) is not tuple:
        normalized_shape = _tuple_of(function, normalized_shape)
    if not normalized_shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = []"
        )
    for position, size in enumerate(normalized_shape):
        if type(size) is not int and not isinstance(size, torch.SymInt) and not is_size(size):
            raise TypeError(
                f"{argument(function, 'normalized_shape')} must be tuple of ints, "
                f"but found element of type {type(size).__name__} at pos {position}"
            )
    return normalized_shape


def is_size(size: Any) -> bool:
    """Return True if a value can stand for an int. As in PyTorch, a bool cannot."""
    try:
        index(size)
    except TypeError:
        return False
    return not isinstance(size, bool)


def _tuple_of(function: Function, normalized_shape: Any) -> tuple:
    """Return a sequence's elements, or one int-like number, as a tuple: as much as PyTorch's modules take."""
    try:
        if hasattr(normalized_shape, "__iter__") and not isinstance(normalized_shape, str):
            return tuple(normalized_shape)
        return (index(normalized_shape),)
    except TypeError:
        raise TypeError(
            f"{argument(function, 'normalized_shape')} must be tuple of ints, not {type(normalized_shape).__name__}"
        ) from None


def argument(function: Function, name: str) -> str:
    """Return PyTorch's words for an argument: its function, name and position."""
    position = list(signature(function).parameters).index(name) + 1
    return f"{function.__name__}(): argument '{name}' (position {position})"
