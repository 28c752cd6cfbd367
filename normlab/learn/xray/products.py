"""What the steps of the SGEMM ladder are traced on."""

from collections.abc import Sequence
from dataclasses import dataclass

from normlab.kernels import ProductStep
from normlab.kernels.sgemm import product as problems
from normlab.learn.xray.traced import SLOWER, StepTrace, traced


@dataclass(frozen=True)
class ProductProblem:
    """(M, K) times (K, N), float32."""

    m: int
    n: int
    k: int
    ladder: str = "sgemm"

    @property
    def title(self) -> str:
        """Return the problem in words."""
        return f"SGEMM, ({self.m}, {self.k}) times ({self.k}, {self.n}) float32"

    def seconds(self, steps: Sequence[ProductStep]) -> float:
        """Return about how long it takes to trace `steps`."""
        return SLOWER * sum(step.simulated_seconds(self.m, self.n, self.k) for step in steps)

    def trace(self, step: ProductStep) -> StepTrace:
        """Return a step's launch on fresh random data, traced."""
        return traced(step, problems.ProductProblem(self.m, self.n, self.k).described())
