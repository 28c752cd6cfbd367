"""Whose dtype a norm's output has, where the input's and the parameters' differ. Used by the modules of `normlab.nn`.

apex's norms give the parameters', torch.nn's the input's, and norms that end in `weight * x` the wider of both, which
is what PyTorch promotes them to. normlab computes as apex does, in the parameters'; the other two are rounded from it.
Under autocast all of them give the autocast dtype.
"""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Rule: TypeAlias = Literal["parameters", "input", "wider"]
RULES: tuple[Rule, ...] = ("input", "parameters", "wider")


def ruled(output: Tensor, input: Tensor, rule: Rule) -> Tensor:
    """The output of a norm, which has the parameters' dtype, in the dtype of the rule."""
    if rule == "parameters" or (not input.is_meta and torch.is_autocast_enabled(input.device.type)):
        return output
    return output.to(input.dtype if rule == "input" else torch.promote_types(input.dtype, output.dtype))
