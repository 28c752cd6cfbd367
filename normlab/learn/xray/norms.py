"""What the steps of a norm's ladder are traced on, forward and backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normlab.kernels import Problem, Step
from normlab.kernels.problem import with_arrays
from normlab.learn.xray.traced import SLOWER, Recorder, Scratch, StepTrace

EPS = 1e-5
RESULTS = ("grad_input", "grad_weight", "grad_bias")  # of the backward


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
        """In words."""
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
        random = np.random.default_rng(0)

        def array(name: str, like: Any) -> np.ndarray:
            if name in ("mean", "invvar"):
                return np.full(like.shape, 0 if name == "mean" else 1, like.dtype)
            return random.normal(size=like.shape).astype(like.dtype)

        problem = with_arrays(asked.described(), EPS, array)
        launch = Recorder({name: getattr(problem, name, None) for name in RESULTS})  # a forward has none of them
        step.run(launch, Scratch, problem)
        return launch.of(step)
