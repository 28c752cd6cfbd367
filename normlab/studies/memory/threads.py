"""Choose how many threads a model runs on: one, while it is small."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from normlab.studies.memory.model import Shape

SHORT = 0.5  # seconds that a step takes on a CPU


@contextmanager
def threads(shape: Shape) -> Iterator[None]:
    """Use one thread inside the `with` block, for a model whose steps are short.

    PyTorch's threads wait for each other by spinning. Where another process uses a core, they spin for long: 60 steps
    of `normlab train` took 25 s on two threads beside a test suite, and 0.5 s with two cores idle. On one thread they
    take 0.6 s.
    """
    before = torch.get_num_threads()
    if shape.seconds < SHORT:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
