"""What the steps of the SGEMM ladder are traced on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normlab.kernels import Product, ProductStep
from normlab.learn.xray.traced import SLOWER, Recorder, StepTrace


@dataclass(frozen=True)
class ProductProblem:
    """(M, K) times (K, N), float32."""

    m: int
    n: int
    k: int
    ladder: str = "sgemm"

    @property
    def title(self) -> str:
        """In words."""
        return f"SGEMM, ({self.m}, {self.k}) times ({self.k}, {self.n}) float32"

    def seconds(self, steps: Sequence[ProductStep]) -> float:
        """Return about how long it takes to trace `steps`."""
        return SLOWER * sum(step.simulated_seconds(self.m, self.n, self.k) for step in steps)

    def trace(self, step: ProductStep) -> StepTrace:
        """Return a step's launch on fresh random data, traced."""
        rng = np.random.default_rng(0)
        a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((self.m, self.k), (self.k, self.n)))
        output = np.empty((self.m, self.n), np.float32)
        operands = Product(np.float32(1), a, b, np.float32(0), None, output)
        launch = Recorder(operands)
        step.run(launch, None, operands)
        return launch.of(step)
