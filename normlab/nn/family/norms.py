"""What makes a norm of the family: its kind, its groups, whose statistics it takes; and what it is given."""

from typing import NamedTuple

from torch import Tensor

from normlab.nn.shapes import Parameter


class Given(NamedTuple):
    """The arguments that all norms have, in the order of torch.nn.functional's; None for what is absent."""

    x: Tensor
    running_mean: Parameter
    running_var: Parameter
    weight: Parameter
    bias: Parameter
    momentum: float
    eps: float


class Norm(NamedTuple):
    """kind: "batch", "instance" or "group"; groups: of group norm, else None; own: the input's own statistics."""

    kind: str
    groups: int | None
    own: bool

    def split(self, x: Tensor) -> Tensor:
        """(N, C, *spatial) as (N, groups, C / groups, *spatial): a view. Each channel is a group but for group norm."""
        channels = x.shape[1]
        groups = channels if self.groups is None else self.groups
        return x.view(x.shape[0], groups, channels // groups if groups else 1, *x.shape[2:])

    def over(self, values: Tensor) -> tuple[int, ...]:
        """The dimensions of a split tensor that a set goes over."""
        inside = tuple(range(2, values.dim()))
        return (0, *inside) if self.kind == "batch" else inside

    def statistics_shape(self, x: Tensor) -> tuple[int, ...]:
        """(C,) for batch norm, else (N, groups)."""
        n, groups = self.split(x).shape[:2]
        return (groups,) if self.kind == "batch" else (n, groups)
