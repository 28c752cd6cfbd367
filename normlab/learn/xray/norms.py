"""What the steps of a norm's ladder are traced on, forward and backward."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normlab.host.checks import FLOATS, statistics_dtype
from normlab.kernels import BackwardProblem, ForwardProblem, Step
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
        problem = self._forward_problem() if self.ladder == "forward" else self._backward_problem()
        launch = Recorder({name: getattr(problem, name, None) for name in RESULTS})  # a forward has none of them
        step.run(launch, Scratch, problem)
        return launch.of(step)

    def _arrays(self, *shapes: tuple[int, ...]) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.normal(size=shape).astype(FLOATS[self.dtype]) for shape in shapes]

    def _forward_problem(self) -> ForwardProblem:
        x, weight, bias, output = self._arrays((self.n1, self.n2), (self.n2,), (self.n2,), (self.n1, self.n2))
        statistics = FLOATS[statistics_dtype(self.dtype)]
        mean, invvar = np.empty((2, self.n1), statistics)
        return ForwardProblem(
            x=x,
            weight=weight,
            bias=None if self.rms else bias,
            eps=statistics.type(EPS),
            output=output,
            mean=None if self.rms else mean,
            invvar=invvar,
        )

    def _backward_problem(self) -> BackwardProblem:
        rows = self.n1, self.n2
        grad_output, saved, weight, bias, grad_input = self._arrays(rows, rows, (self.n2,), (self.n2,), rows)
        statistics = FLOATS[statistics_dtype(self.dtype)]
        return BackwardProblem(
            grad_output=grad_output,
            saved=saved,
            mean=None if self.rms or self.memory_efficient else np.zeros(self.n1, statistics),
            invvar=np.ones(self.n1, statistics),
            weight=weight,
            bias=None if self.rms else bias,
            eps=statistics.type(EPS),
            rms=self.rms,
            memory_efficient=self.memory_efficient,
            grad_input=grad_input,
            grad_weight=np.empty_like(weight),
            grad_bias=None if self.rms else np.empty_like(bias),
        )
