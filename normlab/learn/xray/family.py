"""What the norms of the family are traced on: a pass of each over one image, channels first or last."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from normlab.kernels import family as kernels
from normlab.kernels.family.passes import ImageProblem, Pass
from normlab.learn.xray.traced import SLOWER, Recorder, Scratch, StepTrace, with_random_arrays

ELEMENT_SECONDS = 20e-6  # of the simulator, in all kernels of a pass (2 cores at 2.5 GHz)


@dataclass(frozen=True)
class FamilyProblem:
    """An image (N, C, *spatial) with weight and bias; group norm has two groups, or one for an odd C."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    channels_last: bool = False
    ladder: str = "family"

    @property
    def title(self) -> str:
        """Return the problem in words."""
        layout = ", channels last" if self.channels_last else ""
        return f"The norm family, {' x '.join(map(str, self.shape))} {self.dtype}{layout}"

    def seconds(self, steps: Sequence[Pass]) -> float:
        """Return about how long it takes to trace `steps`."""
        return SLOWER * len(steps) * prod(self.shape) * ELEMENT_SECONDS

    def trace(self, step: Pass) -> StepTrace:
        """Return a pass's launches on fresh random data, traced."""
        groups = 2 - self.shape[1] % 2
        operands = with_random_arrays(step.described(ImageProblem(self.shape, self.dtype, groups, self.channels_last)))
        walked, launch = kernels.walk(operands.sets, *operands.reading, *operands.writing), Recorder(operands)
        (kernels.gradients if step.backward else kernels.forward)(launch, Scratch, walked, operands)
        return launch.of(step)
