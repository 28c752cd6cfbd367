"""Provide a barrier for all threads of a launch: the twin of an engine's `grid_sync`."""

from typing import Any

from normlab.sim.language.errors import SimulationError
from normlab.sim.protocols import Cuda


def grid_sync(cuda: Cuda, arrivals: Any, index: Any) -> None:
    """Count the block in `arrivals[index]`, and wait for all threads of the grid.

    Raises SimulationError if the element has not begun at 0: blocks would go on before the last one has come.
    """
    blocks = len(cuda.grid_run.block_indices)
    # Thread 0 of each block counts for its block, as the engine's intrinsic does.
    if not any(cuda.current.index):
        before = int(cuda.atomic.add(arrivals, index, 1))
        if not 0 <= before < blocks:
            raise SimulationError(
                f"grid_sync finds {before} arrivals of {blocks} blocks when another one comes: its counter begins at "
                "0, and is for one meeting of one launch"
            )
    # The counter only proves that it began at 0. The wait itself is the scheduler's, which knows all blocks.
    cuda.cg.this_grid().sync()
