"""Hold the operands of the family's passes, so that a host function takes one value instead of a dozen.

A kernel takes its arrays one by one, because a launch cannot pass a tuple.
"""

from dataclasses import dataclass
from typing import Any

from normlab.kernels.family.sets import Sets


@dataclass(frozen=True)
class Outputs:
    """The operands of a forward pass, which writes output, mean, invvar and, unless it is None, the unbiased variance.

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
    def reading(self) -> tuple:
        """Return the arrays of x's shape that the pass reads."""
        return (self.x,)

    @property
    def writing(self) -> tuple:
        """Return the arrays of x's shape that the pass writes."""
        return (self.output,)


@dataclass(frozen=True)
class Gradients:
    """The operands of a backward pass, which writes grad_input and, unless they are None, grad_weight and grad_bias.

    grad_output, x, grad_input: `sets.shape`. mean, invvar, weight: as in `Outputs`. own: True if mean and invvar were
    computed from x, False if they are running statistics. grad_weight, grad_bias: (sets.parameters,) or None.
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
    def reading(self) -> tuple:
        """Return the arrays of x's shape that the pass reads."""
        return self.grad_output, self.x

    @property
    def writing(self) -> tuple:
        """Return the arrays of x's shape that the pass writes."""
        return (self.grad_input,)
