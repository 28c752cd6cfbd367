"""Mistakes in what is handed to a norm, told in PyTorch's words for the same mistake.

Called by `normlab.nn.functional` before anything is computed. Where PyTorch's own words differ between its two norms,
they are layer_norm's.
"""

import torch
from torch import Tensor

from normlab.nn.shapes import Parameter, Shape

MODES = (False, True, "exact")
FLOATS = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}
NAMES = FLOATS | {
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
HALVES = (torch.float16, torch.bfloat16)


def check(function: str, x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, memory_efficient: object) -> None:
    """Raise what PyTorch raises: RuntimeError for shapes, mixes of dtypes and devices, TypeError for no tensors.

    Raises:
        ValueError: a memory_efficient that is none of False, True and "exact".
        NotImplementedError: a dtype that is no real floating one.
    """
    if memory_efficient not in MODES:
        raise ValueError(f'memory_efficient must be False, True or "exact", got {memory_efficient!r}')
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        if not isinstance(parameter, Tensor):
            raise TypeError(f"{function}(): argument '{name}' must be Tensor, not {type(parameter).__name__}")
        if parameter.shape != shape:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(parameter.shape)} and normalized_shape = {list(shape)}"
            )
    if x.shape[-len(shape) :] != shape:
        expected = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [{expected}], "
            f"but got input of size{list(x.shape)}"
        )


def check_kinds(function: str, x: Tensor, weight: Parameter, bias: Parameter) -> None:
    """Raise what PyTorch raises for dtypes and devices that do not go together."""
    if x.dtype not in FLOATS:
        raise NotImplementedError(f"\"{function}\" not implemented for '{NAMES.get(x.dtype, x.dtype)}'")
    for parameter in (weight, bias):
        if parameter is None:
            continue
        if parameter.device != x.device:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{x.device} and {parameter.device}!"
            )
        kinds = {x.dtype, parameter.dtype}
        if len(kinds) > 1 and not (torch.float32 in kinds and kinds & set(HALVES)):
            raise RuntimeError(
                f"mixed dtype ({x.device.type.upper()}): expect parameter to have scalar type of {NAMES[x.dtype]}, "
                f"but got {NAMES.get(parameter.dtype, parameter.dtype)}"
            )
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise RuntimeError(f"expected scalar type {NAMES[weight.dtype]} but found {NAMES[bias.dtype]}")
