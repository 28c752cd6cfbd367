"""Hold the operands of the family's passes, so that a host function takes one value instead of a dozen.

Kernels themselves take their arrays one by one, as every kernel that a host launches: a launch has no tuples.
"""

from dataclasses import dataclass
from typing import Any

from normlab.kernels.family.sets import Sets


@dataclass(frozen=True)
class Outputs:
    """The operands of a forward pass: output, and mean, invvar and variance (unbiased; or None) of every set.

    x, output: `sets.shape`. weight, bias: (sets.parameters,) or None. eps: a NumPy scalar of the accumulator's dtype.
    mean, variance, invvar: (sets.total,), accumulator dtype.
    """

    sets: Sets
    x: Any
    weight: Any
    bias: Any
    eps: Any
    mean: Any
    variance: Any
    invvar: Any
    output: Any

    @property
    def like_x(self) -> tuple:
        """Return the arrays that are like x."""
        return self.x, self.output

    @property
    def reading(self) -> tuple:
        """Return the matrices that come in."""
        return (self.x,)

    @property
    def writing(self) -> tuple:
        """Return the matrices that go out."""
        return (self.output,)


@dataclass(frozen=True)
class Gradients:
    """The operands of a backward pass.

    grad_output, x, grad_input: `sets.shape`. mean, invvar, weight: as in `Outputs`. own: the statistics are those of x
    itself. grad_weight, grad_bias: (sets.parameters,) or None.
    """

    sets: Sets
    grad_output: Any
    x: Any
    mean: Any
    invvar: Any
    weight: Any
    own: bool
    grad_input: Any
    grad_weight: Any
    grad_bias: Any

    @property
    def like_x(self) -> tuple:
        """Return the arrays that are like x."""
        return self.grad_output, self.x, self.grad_input

    @property
    def reading(self) -> tuple:
        """Return the matrices that come in."""
        return self.grad_output, self.x

    @property
    def writing(self) -> tuple:
        """Return the matrices that go out."""
        return (self.grad_input,)

    @property
    def results(self) -> tuple:
        """Return all arrays that a pass writes."""
        return self.grad_input, self.grad_weight, self.grad_bias
