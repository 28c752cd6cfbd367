"""Trace the launches of one step of a ladder.

A step of `normlab.kernels` launches its kernels through a function that its caller gives it. Here this function is a
`Recorder`, which runs each kernel in the simulator and keeps its trace. `norms`, `family` and `products` use it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from normlab.kernels.problem import with_arrays
from normlab.sim import Trace, trace
from normlab.sim.tracing import Counts

EPS = 1e-5
RESULTS = ("grad_input", "grad_weight", "grad_bias")  # of a backward
SLOWER = 5  # used to predict times: a traced kernel takes at most so many times as long as a simulated one


@dataclass(frozen=True)
class StepTrace:
    """The traces of a step's launches, in order."""

    step: Any  # of any ladder; it has a name
    traces: list[Trace]
    results: list[str]  # per launch: the named results among its arguments, such as "grad_weight-grad_bias", or ""

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics of all launches together. A byte that several launches touch counts once per launch.

        `Counts.add` leaves unique bytes out, so they are added here.
        """
        total = Counts()
        for one in self.traces:
            total.add(one.counts)
            total.unique.ld += one.counts.unique.ld
            total.unique.st += one.counts.unique.st
        return total.metrics()


class Recorder:
    """A step's `launch` function: runs every kernel in the simulator, and keeps its trace.

    operands: of the step. `StepTrace.results` says which launch has which gradient of them among its arguments.
    """

    def __init__(self, operands: Any):
        results = {name: getattr(operands, name, None) for name in RESULTS}  # a forward has none of them
        self.named = {id(array): name for name, array in results.items() if array is not None}
        self.traces: list[Trace] = []
        self.results: list[str] = []

    def __call__(
        self, kernel: Any, grid: Any, block: Any, *arguments: Any, shared_bytes: int = 0, cluster: int = 1
    ) -> None:
        """Run one kernel, with the arguments of `engine.launch`, and keep its trace."""
        stream = 0
        self.traces.append(trace(kernel, cluster=cluster)[grid, block, stream, shared_bytes](*arguments))
        self.results.append("-".join(self.named[id(one)] for one in arguments if id(one) in self.named))

    def of(self, step: Any) -> StepTrace:
        """Return all launches so far as the `StepTrace` of `step`."""
        return StepTrace(step, self.traces, self.results)


class Problem(Protocol):
    """The input on which the steps of a ladder are traced. A dataclass, because the JSON output shows its fields."""

    @property
    def title(self) -> str:
        """Return the problem in words."""
        ...

    def seconds(self, steps: Sequence[Any]) -> float:
        """Return about how long it takes to trace `steps`."""
        ...

    def trace(self, step: Any) -> StepTrace:
        """Return a step's launches on fresh random data, traced."""
        ...


def with_random_arrays(described: Any) -> Any:
    """Return described operands with random arrays, the same at every call; each mean is 0 and each invvar 1."""
    random = np.random.default_rng(0)

    def array(name: str, like: Any) -> np.ndarray:
        if name in ("mean", "invvar"):
            return np.full(like.shape, 0 if name == "mean" else 1, like.dtype)
        return random.normal(size=like.shape).astype(like.dtype)

    return with_arrays(described, EPS, array)


def traced(step: Any, described: Any) -> StepTrace:
    """Return a step's launches on random data, traced."""
    operands = with_random_arrays(described)
    launch = Recorder(operands)
    step.run(launch, Scratch, operands)
    return launch.of(step)


class Scratch:
    """An allocator, in NumPy, which a step asks for arrays for its partial results."""

    empty = staticmethod(np.empty)
    zeros = staticmethod(np.zeros)
