"""Kernels that begin early, in a simulator in which nothing is there before they wait for it."""

import numpy as np

from normlab.engine import grid_dependency_sync, launch
from normlab.engine.device.dependent import begins_early
from normlab.sim.language import rewrite


class Late:
    """Launches that see nothing of what is in `late`, such as all that kernels make, until they wait for it."""

    def __init__(self, monkeypatch):
        self.late, self.arrive = [], None
        twin = grid_dependency_sync, self.wait, False
        monkeypatch.setitem(rewrite._twins, id(grid_dependency_sync), twin)

    def wait(self):
        for array, values in self.arrive or []:
            array[...] = values
        self.arrive = None

    def empty(self, shape, dtype):
        self.late.append(np.full(shape, np.nan, dtype))
        return self.late[-1]

    def launch(self, kernel, grid, block, *operands, **options):
        if begins_early(kernel):
            self.arrive = [(array, array.copy()) for array in self.late]
            for array in self.late:
                array[...] = np.nan
        launch(kernel, grid, block, *operands, **options)
        assert self.arrive is None, "it begins early, and never waits"
