"""What the steps of a norm's ladder are traced on, forward and backward."""

from collections.abc import Sequence
from dataclasses import dataclass

from normlab.kernels import Problem, Step
from normlab.learn.xray.traced import SLOWER, StepTrace, traced


@dataclass(frozen=True)
class NormProblem:
    """What the steps of a ladder are traced on: (n1, n2) elements of `dtype`, the same for input and parameters."""

    ladder: str
    n1: int
    n2: int
    dtype: str = "float32"
    rms: bool = False
    memory_efficient: bool = False

    @property
    def title(self) -> str:
        """Return the problem in words."""
        what = f"{'RMSNorm' if self.rms else 'LayerNorm'} {self.ladder}"
        path = ", recomputed from the output" if self.memory_efficient else ""
        return f"{what}{path}, {self.n1} x {self.n2} {self.dtype}"

    def seconds(self, steps: Sequence[Step]) -> float:
        """Return about how long it takes to trace `steps`."""
        return SLOWER * sum(step.simulated_seconds(self.n1, self.n2) for step in steps)

    def trace(self, step: Step) -> StepTrace:
        """Return a step's launches on fresh random data, traced."""
        norm, saved = "rms" if self.rms else "layer", "output" if self.memory_efficient else "input"
        asked = Problem(self.ladder, norm, self.n1, self.n2, self.dtype, saved=saved)
        return traced(step, asked.described())
