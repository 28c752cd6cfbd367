"""Whose dtype a norm's output has, where the input's and the parameters' differ. Used by the modules of `normlab.nn`.

apex's norms give the parameters', torch.nn's the input's, and norms that end in `weight * x` the wider of both, which
is what PyTorch promotes them to. The kernels know apex's rule. For the other two, half parameters beside a float32
input are made float32 first (`normlab.nn.functional.norm`), and a half that is wanted is rounded from a float32 output.
Under autocast all of them give the autocast dtype.
"""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from normlab.nn.checks import HALVES

Rule: TypeAlias = Literal["parameters", "input", "wider"]
RULES: tuple[Rule, ...] = ("input", "parameters", "wider")


def rounded(input: Tensor, *parameters: Tensor | None) -> bool:
    """By the rule "input": is a half made of an output in float32?"""
    if input.dtype not in HALVES or _autocast(input):
        return False
    return any(parameter is not None and parameter.dtype is torch.float32 for parameter in parameters)


def ruled(output: Tensor, input: Tensor, rule: Rule) -> Tensor:
    """The output of `normlab.nn.functional.norm` in the dtype of the rule."""
    return output if rule != "input" or _autocast(input) else output.to(input.dtype)


def _autocast(input: Tensor) -> bool:
    return not input.is_meta and torch.is_autocast_enabled(input.device.type)
