"""What the modules of the gated norm pass to each other: its options, and the tensors that it saves."""

from typing import NamedTuple

from torch import Tensor

from normlab.nn.shapes import Parameter


class GateHow(NamedTuple):
    """What a forward and its backward need beside tensors."""

    eps: float
    norm_before_gate: bool
    memory_efficient: bool


class GateSaved(NamedTuple):
    """What a backward gets of its forward. tensor: x, or with memory_efficient the output."""

    tensor: Tensor
    gate: Tensor
    invvar: Tensor
    weight: Parameter
