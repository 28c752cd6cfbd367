"""Define the form of the backward that a pipelined kernel is built for: which norm, and what is given and wanted."""

from typing import Any, NamedTuple

import numpy as np

from normlab.kernels.backward.pipelined.layout import ACCUMULATOR_BYTES
from normlab.stages.gate import Gate
from normlab.stages.row_map import RowMap

NARROW_BYTES = 2
NARROW_WIDTH = 8  # elements of a vector of 16 bytes


class Kind(NamedTuple):
    """The form of the backward that a kernel is built for. Its fields are constants of the kernel."""

    rms: bool  # RMSNorm, else LayerNorm
    memory_efficient: bool  # the saved array is the output, from which x̂ is recomputed; else it is the input
    weighted: bool  # there is a weight, and its gradient is wanted
    biased: bool  # there is a bias, and its gradient is wanted
    narrow: bool  # shared memory holds the parameters in their own 16 bits, else in float32
    together: int  # elements of parameters and their gradients that one instruction may move, at most a row's vector
    float16: bool = False  # the saved array is an output in float16
    offset: float = 0.0  # gamma is weight + offset; not of a LayerNorm from the output, whose mean(g) does not know it
    row_map: RowMap | None = None  # where the rows of the saved array lie
    gating: Gate | None = None  # an RMSNorm with a gate; if it recomputes x̂, it needs no clamped gamma (`gated`)
    gate_map: RowMap | None = None  # where the rows of the gate lie
    sampled: bool = False  # parameters are a row per sample (`samples`)
    beside: bool = False  # other blocks make the parameters' gradients (`beside`)

    @property
    def sums(self) -> tuple[bool, bool]:
        """Return whether the blocks that take rows add up the columns' sums, for the weight and for the bias."""
        return self.weighted and not self.beside, self.biased and not self.beside

    @property
    def divisor_offset(self) -> float | None:
        """Return the offset of the gammas by which the last kernel divides grad_weight; None if it does not."""
        return self.offset if self.memory_efficient and self.weighted else None

    @property
    def centered(self) -> bool:
        """Return True if the passes subtract the mean: from a LayerNorm's saved input, not from an output."""
        return not (self.rms or self.memory_efficient)

    @property
    def parameters(self) -> int:
        """Return how many parameter arrays shared memory holds in float32.

        From the input: gamma. From the output: the clamped gamma, 1 / gamma and beta.
        """
        return self.weighted + self.memory_efficient * (self.weighted + self.biased)

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes of parameters in shared memory per column."""
        if self.narrow:  # no clamped copy and no 1 / gamma: each pass makes them
            return NARROW_BYTES * (self.weighted + self.memory_efficient * self.biased)
        return ACCUMULATOR_BYTES * self.parameters


def kind_of(problem: Any, width: int, together: int, anywhere: bool = False) -> Kind:
    """Return the kind of a backward problem.

    width: elements of a row that one instruction moves. together: as in `Kind`. anywhere: rows begin in the middle of
    a vector, so that parameters are moved one by one.
    """
    weight, bias = problem.weight, problem.bias
    float16 = problem.memory_efficient and problem.saved.dtype == np.float16
    kind = Kind(problem.rms, problem.memory_efficient, weight is not None, bias is not None, False, together, float16)
    # Narrow parameters are moved as they are, 16 bytes at once if rows allow it; others are loaded, widened and stored.
    sizes = {array.dtype.itemsize for array in (weight, bias) if array is not None}
    moved = width == NARROW_WIDTH and (anywhere or together == width)
    narrow = kind.parameters > 0 and sizes == {NARROW_BYTES} and moved
    others = {name: getattr(problem, name) for name in ("offset", "row_map", "gating", "gate_map")}
    return kind._replace(narrow=narrow, sampled=problem.sampled, **others)
