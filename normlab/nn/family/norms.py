"""A norm of the family (kind, groups, source of its statistics), and the arguments of a call."""

from typing import NamedTuple

import torch
from torch import Tensor

from normlab.nn.shapes import Parameter


class Given(NamedTuple):
    """The arguments that all norms have, in torch.nn.functional's order; an absent one is None."""

    x: Tensor
    running_mean: Parameter
    running_var: Parameter
    weight: Parameter
    bias: Parameter
    momentum: float
    eps: float


class Norm(NamedTuple):
    """A norm of the family.

    kind: "batch", "instance" or "group". groups: the number of groups of group norm, else None. own: True to normalise
    by the input's own statistics, False to normalise by the running ones.
    """

    kind: str
    groups: int | None
    own: bool

    def split(self, x: Tensor) -> Tensor:
        """Return (N, C, *spatial) as a view (N, groups, C / groups, *spatial).

        Each channel is a group, except in group norm.
        """
        channels = x.shape[1]
        groups = channels if self.groups is None else self.groups
        return x.view(x.shape[0], groups, channels // groups if groups else 1, *x.shape[2:])

    def over(self, values: Tensor) -> tuple[int, ...]:
        """Return the dimensions of a split tensor that a set extends over."""
        inside = tuple(range(2, values.dim()))
        return (0, *inside) if self.kind == "batch" else inside

    def statistics_shape(self, x: Tensor) -> tuple[int, ...]:
        """Return the shape of mean and invvar: (C,) for batch norm, else (N, groups)."""
        n, groups = self.split(x).shape[:2]
        return (groups,) if self.kind == "batch" else (n, groups)

    def layout(self, x: Tensor) -> torch.memory_format:
        """Return the memory format that torch.nn.functional copies x to, and that its gradient of x has."""
        if self.kind == "instance" or (self.kind == "group" and x.is_cuda):
            return torch.contiguous_format
        return suggested(x)

    def output_layout(self, x: Tensor) -> torch.memory_format:
        """Return the memory format of torch.nn.functional's output: `layout`, except for strides of axes of size 1."""
        return torch.contiguous_format if self.kind == "batch" and x.is_contiguous() else self.layout(x)

    def in_layout(self, x: Tensor) -> Tensor:
        """Return x in the memory format `layout`: itself, or a copy. For instance norm the strides are canonical."""
        if not x.is_contiguous():
            return x.contiguous(memory_format=self.layout(x))
        if self.kind == "instance" and suggested(x) is not torch.contiguous_format:
            return x.flatten().view(x.shape)
        return x


def suggested(x: Tensor) -> torch.memory_format:
    """Return the memory format that x's strides suggest, as PyTorch's C++ function `suggest_memory_format` does."""
    strides, least = x.stride(), 0
    if x.dim() not in (4, 5) or strides[1] == 0:
        return torch.contiguous_format
    for axis in (1, *range(x.dim() - 1, 1, -1), 0):  # from the innermost axis outwards, if channels are last
        if x.shape[axis] == 0 or strides[axis] < least or (axis == 0 and strides[1] == least):
            return torch.contiguous_format
        least = strides[axis] * x.shape[axis]
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d
