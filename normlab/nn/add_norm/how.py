"""The options of a norm of x + residual, as its modules pass them to each other."""

from typing import NamedTuple

import torch
from torch import Tensor

from normlab.nn.formulas import accumulator, to
from normlab.nn.shapes import How, MemoryEfficient, Parameter, Saved


class AddHow(NamedTuple):
    """The options of a forward and its backward. offset: gamma is weight + offset.

    memory_efficient: False, True or "exact". Of a public function (`functional`) "exact" means an addition, and then a
    plain norm with "exact". Of a module in the residual stream (`normlab.nn.stream`) it means that each forward chooses
    between False and True (`saving`).
    """

    eps: float
    rms: bool
    offset: float
    memory_efficient: MemoryEfficient

    def plain(self, saved: Saved, dtype: torch.dtype) -> How:
        """Return the options of the norm after the addition. dtype: of grad_input."""
        return How(dtype, tuple(saved.tensor.shape[-1:]), self.eps, self.rms, self.memory_efficient)

    def gamma(self, weight: Parameter, like: Tensor) -> Parameter:
        """Return weight + offset, in accumulator precision for norms of `like`; the weight itself without an offset."""
        return weight if weight is None or not self.offset else to(weight, accumulator(like.dtype)) + self.offset
