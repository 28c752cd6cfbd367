"""Say which of the backward's forms a pipelined kernel is built for."""

from typing import Any, NamedTuple

import numpy as np

from normlab.kernels.backward.pipelined.layout import ACCUMULATOR_BYTES

NARROW_BYTES = 2
NARROW_WIDTH = 8  # elements of a vector of 16 bytes


class Kind(NamedTuple):
    """The form of the gradient that a kernel is built for: its conditions, which are constants of the kernel.

    weighted, biased: these gradients are wanted. narrow: parameters lie in shared memory as they are, in 16 bits.
    together: neighbouring elements of parameters and their gradients that one instruction may move, as their addresses
    are; no more than a vector of the row has. float16: recomputing, the saved output's dtype is that.
    """

    rms: bool
    memory_efficient: bool
    weighted: bool
    biased: bool
    narrow: bool
    together: int
    float16: bool = False

    @property
    def centered(self) -> bool:
        """Return True if the passes subtract the mean: from a LayerNorm's saved input, not from an output."""
        return not (self.rms or self.memory_efficient)

    @property
    def parameters(self) -> int:
        """Return the arrays in shared memory, widened: gamma; recomputing, gamma clamped, 1 / gamma, and beta."""
        return self.weighted + self.memory_efficient * (self.weighted + self.biased)

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes of shared memory per column."""
        if self.narrow:  # no clamped copy and no 1 / gamma: each pass makes them
            return NARROW_BYTES * (self.weighted + self.memory_efficient * self.biased)
        return ACCUMULATOR_BYTES * self.parameters


def kind_of(problem: Any, width: int, together: int) -> Kind:
    """Return the kind of a backward problem; parameters are narrow if they and the rows come in vectors of eight."""
    weight, bias = problem.weight, problem.bias
    float16 = problem.memory_efficient and problem.saved.dtype == np.float16
    kind = Kind(problem.rms, problem.memory_efficient, weight is not None, bias is not None, False, together, float16)
    # Narrow parameters are copied 16 bytes at once, as they are; others are loaded, widened and stored.
    sizes = {array.dtype.itemsize for array in (weight, bias) if array is not None}
    narrow = kind.parameters > 0 and sizes == {NARROW_BYTES} and width == together == NARROW_WIDTH
    return kind._replace(narrow=narrow)
