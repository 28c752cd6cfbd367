"""What a step of a ladder tells the rest of the house about itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Chains(NamedTuple):
    """The longest chain of additions in a kernel's sums: what its rounding error grows with.

    `terms` values one thread adds one after another, then `merges` levels of a tree over threads.
    """

    terms: int
    merges: int


def longest(*chains: Chains) -> Chains:
    """Chains as long as the longest of each kind: for a step that has several kernels."""
    return Chains(max(chain.terms for chain in chains), max(chain.merges for chain in chains))


@dataclass(frozen=True)
class Step:
    """One rung.

    Attributes:
        name: what `step=` of the host functions takes.
        summary: one line.
        run: queues the kernels; every array is an operand that `engine.launch` takes (NumPy, or on a device).
        row_chains: n2 -> the chains of its sums along a row.
        simulated_seconds: (n1, n2) -> about how long the simulator takes (measured on 2 cores at 2.5 GHz). It pays
            about 60 µs for a thread with its shuffles and barriers, and 3 to 30 µs for an element.
    """

    name: str
    summary: str
    run: Callable[..., None]
    row_chains: Callable[[int], Chains]
    simulated_seconds: Callable[[int, int], float]


@dataclass(frozen=True)
class ForwardStep(Step):
    """`run(launch, x, weight, bias, eps, output, mean, invvar)`.

    x, output: (n1, n2), n1 > 0; weight, bias: (n2,) or None; mean: (n1,), or None for RMSNorm; invvar: (n1,);
    eps: a NumPy scalar of mean's dtype. `statistics`: how the variance is found, in `oracle.Arithmetic`'s words.
    `scratch`: `run` takes `memory=`, too, as a `BackwardStep`'s; without it some rows take an earlier step's way.
    """

    statistics: str
    scratch: bool = False


@dataclass(frozen=True)
class BackwardStep(Step):
    """`run(launch, memory, problem)`; `memory.empty(shape, dtype)` and `memory.zeros(shape, dtype)` give scratch.

    `column_chains`: (n1, n2) -> the chains of its sums over rows.
    """

    column_chains: Callable[[int, int], Chains]


@dataclass(frozen=True)
class BackwardProblem:
    """The operands of a backward pass.

    grad_output, saved, grad_input: (n1, n2), n1 > 0; mean: (n1,), or None for RMSNorm and when memory_efficient;
    invvar: (n1,); weight, bias, grad_weight, grad_bias: (n2,) or None; eps: a NumPy scalar of invvar's dtype; `rms`:
    RMSNorm; `memory_efficient`: `saved` is the output, else the input, whose dtype grad_input has either way.
    `row_sums`: None, or in the exact mode (3, n1), accumulator dtype: what a step adds to each row's sum of g x̂, and
    where it leaves mean(g) and mean(g x̂).
    """

    grad_output: Any
    saved: Any
    mean: Any
    invvar: Any
    weight: Any
    bias: Any
    eps: Any
    rms: bool
    memory_efficient: bool
    grad_input: Any
    grad_weight: Any
    grad_bias: Any
    row_sums: Any = None

    @property
    def operands(self) -> tuple:
        """What every backward kernel reads, in the order of its arguments."""
        return self.grad_output, self.saved, self.mean, self.invvar, self.weight, self.bias, self.eps

    @property
    def matrices(self) -> tuple:
        """The arrays with rows: what a vector must be aligned in."""
        return self.grad_output, self.saved, self.grad_input
