"""What the norms of the family are traced on: a pass of each over one image, channels first or last."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from normlab.host.checks import FLOATS, statistics_dtype
from normlab.host.family import View
from normlab.kernels import family as kernels
from normlab.learn.xray.traced import SLOWER, Recorder, Scratch, StepTrace

EPS = 1e-5
ELEMENT_SECONDS = 20e-6  # of the simulator, in all kernels of a pass (2 cores at 2.5 GHz)


class Pass(NamedTuple):
    """A norm, forward or backward."""

    norm: str
    backward: bool

    @property
    def name(self) -> str:
        """What stands behind "family/"."""
        return f"{self.norm}_backward" if self.backward else self.norm


PASSES = tuple(Pass(norm, backward) for backward in (False, True) for norm in ("batch", "instance", "group"))


@dataclass(frozen=True)
class FamilyProblem:
    """An image (N, C, *spatial) with weight and bias; group norm has two groups, or one for an odd C."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    channels_last: bool = False
    ladder: str = "family"

    @property
    def title(self) -> str:
        """In words."""
        layout = ", channels last" if self.channels_last else ""
        return f"The norm family, {' x '.join(map(str, self.shape))} {self.dtype}{layout}"

    def seconds(self, steps: Sequence[Pass]) -> float:
        """Return about how long it takes to trace `steps`."""
        return SLOWER * len(steps) * prod(self.shape) * ELEMENT_SECONDS

    def trace(self, step: Pass) -> StepTrace:
        """Return a pass's launches on fresh random data, traced."""
        channels = self.shape[1]
        groups = channels if step.norm != "group" else 2 - channels % 2
        sets = View(self.shape, self.channels_last).sets(step.norm, groups)
        statistics, rng = FLOATS[statistics_dtype(self.dtype)], np.random.default_rng(0)
        x, grad_output = rng.normal(size=(2, *sets.shape)).astype(FLOATS[self.dtype])
        weight, bias = rng.normal(size=(2, channels)).astype(FLOATS[self.dtype])
        mean, invvar, result = np.zeros(sets.total, statistics), np.ones(sets.total, statistics), np.empty_like(x)
        if not step.backward:
            launch, walked = Recorder(), kernels.walk(sets, x, result)
            eps = statistics.type(EPS)
            operands = kernels.Outputs(sets, x, weight, bias, eps, mean, None, invvar, result)
            kernels.forward(launch, Scratch, walked, operands)
            return launch.of(step)
        grad_weight, grad_bias = np.empty_like(weight), np.empty_like(bias)
        launch = Recorder({"grad_input": result, "grad_weight": grad_weight, "grad_bias": grad_bias})
        walked = kernels.walk(sets, grad_output, x, result)
        gradients = result, grad_weight, grad_bias
        given = kernels.Gradients(sets, grad_output, x, mean, invvar, weight, True, *gradients)
        kernels.gradients(launch, Scratch, walked, given)
        return launch.of(step)
