"""What was counted of a step: its launches' traces, made by a `Recorder` that a step is given as its `launch`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from normlab.sim import Trace, trace
from normlab.sim.tracing import Counts

SLOWER = 5  # times that a traced kernel takes at most, compared with a simulated one


@dataclass(frozen=True)
class StepTrace:
    """A step's launches, each traced, in order."""

    step: Any  # whatever has a name
    traces: list[Trace]
    results: list[str]  # what each launch computes of the named results, "grad_weight" say; or nothing

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of all its launches together; unique bytes count once a launch."""
        total = Counts()
        for one in self.traces:
            total.add(one.counts)
            total.unique.ld += one.counts.unique.ld
            total.unique.st += one.counts.unique.st
        return total.metrics()


class Recorder:
    """Launches kernels as a step asks for, in the simulator, and traces them. named: name → array of a result."""

    def __init__(self, named: Mapping[str, Any] | None = None):
        self.named = {id(array): name for name, array in (named or {}).items() if array is not None}
        self.traces: list[Trace] = []
        self.results: list[str] = []

    def __call__(
        self, kernel: Any, grid: Any, block: Any, *arguments: Any, shared_bytes: int = 0, cluster: int = 1
    ) -> None:
        """As `engine.launch`."""
        self.traces.append(trace(kernel, cluster=cluster)[grid, block, 0, shared_bytes](*arguments))
        self.results.append("-".join(self.named[id(one)] for one in arguments if id(one) in self.named))

    def of(self, step: Any) -> StepTrace:
        """All launches, as those of a step."""
        return StepTrace(step, self.traces, self.results)


class Problem(Protocol):
    """What the steps of a ladder are traced on: a dataclass, whose fields the JSON shows."""

    @property
    def title(self) -> str:
        """In words."""
        ...

    def seconds(self, steps: Sequence[Any]) -> float:
        """Return about how long it takes to trace `steps`."""
        ...

    def trace(self, step: Any) -> StepTrace:
        """Return a step's launches on fresh random data, traced."""
        ...


class Scratch:
    """Memory for a step's partial results."""

    empty = staticmethod(np.empty)
    zeros = staticmethod(np.zeros)
