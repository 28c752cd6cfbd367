"""Run kernels under `sanitize`, one after another, with memory that has no contents: what tests of findings share."""

import numpy as np

from normlab.sim import sanitize


class Memory:
    """Gives arrays to a step and remembers which of them have no contents yet."""

    def __init__(self):
        self.empties = []

    def empty(self, shape, dtype):
        self.empties.append(np.full(shape, np.nan, dtype))
        return self.empties[-1]

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype)


def launcher(memory, schedule="forward"):
    """A function for a step to launch kernels with. What one kernel has written is no longer empty for the next."""

    def launch(kernel, grid, block, *operands, shared_bytes=0, cluster=1):
        empties = [one for one in memory.empties if any(one is operand for operand in operands)]
        report = sanitize(kernel, empties, schedule, cluster=cluster)[grid, block, 0, shared_bytes](*operands)
        assert not report.findings, str(report)
        memory.empties = [one for one in memory.empties if not any(one is known for known in empties)]

    return launch
