"""Hold the operands of the family's passes, so that a host function takes one value instead of a dozen."""

from dataclasses import dataclass
from typing import Any

from normlab.kernels.family.sets import Sets


@dataclass(frozen=True)
class Outputs:
    """The operands of a forward pass, which writes output, mean, invvar and, unless it is None, the unbiased variance.

    x, output: `sets.shape`. weight, bias: (sets.parameters,) or None. eps: a NumPy scalar of the accumulator's dtype.
    mean, variance, invvar: (sets.total,), accumulator dtype.
    """

    # Host functions pass these on together. A launch cannot pass a tuple, so a kernel takes the arrays one by one.
    sets: Sets
    x: Any
    weight: Any
    bias: Any
    eps: Any
    mean: Any
    # Only running statistics need the unbiased variance; the output is made from mean and invvar.
    variance: Any
    invvar: Any
    output: Any

    @property
    def reading(self) -> tuple:
        """Return the arrays of x's shape that the pass reads."""
        # With `writing`: the arrays whose addresses and row lengths decide how wide a thread's vectors are.
        return (self.x,)

    @property
    def writing(self) -> tuple:
        """Return the arrays of x's shape that the pass writes."""
        return (self.output,)


@dataclass(frozen=True)
class Gradients:
    """The operands of a backward pass, which writes grad_input and, unless they are None, grad_weight and grad_bias.

    grad_output, x, grad_input: `sets.shape`. mean, invvar, weight: as in `Outputs`. grad_weight, grad_bias:
    (sets.parameters,) or None.
    """

    sets: Sets
    grad_output: Any
    x: Any
    mean: Any
    invvar: Any
    weight: Any
    # True if mean and invvar were computed from x, so that grad_input has terms for how they change with x. False if
    # they are running statistics, which are constants: grad_input is then g invvar.
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
