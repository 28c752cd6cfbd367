"""Let all threads of a launch meet: `cuda.cg.this_grid().sync()`, and the twin in machine/grid.py."""

from typing import Any

import numpy as np

from normlab.sim.machine import grid
from normlab.sim.machine.api import GridGroup
from normlab.sim.vectorised import atomics
from normlab.sim.vectorised.calls import METHODS, register_lanes
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.refusal import NotVectorisedError, WholeGridError
from normlab.sim.vectorised.values import Vector


def sync(frame: Frame) -> int:
    """Let all threads of the grid meet; raises WholeGridError unless all blocks run at once."""
    machine, launch = frame.lanes.machine, frame.lanes.machine.launch
    # The other blocks come in a later chunk, too late to be met. So the launch begins anew, as one chunk.
    if machine.blocks < launch.blocks:
        if not launch.fits_one_chunk:
            raise NotVectorisedError("of a grid sync of so many threads")
        raise WholeGridError
    if frame.width != machine.alive_count:
        raise NotVectorisedError("only some threads of the grid come to a grid sync together")
    machine.grid_sync(frame)
    return 0


def counted_sync(frame: Frame, arrivals: Any, index: Any) -> None:
    """Do `grid_sync` of machine/grid.py: thread 0 of each block counts for its block."""
    machine = frame.lanes.machine
    # Lane numbers count through the blocks, `threads` to a block.
    first = np.flatnonzero(frame.lanes.ids % machine.launch.threads == 0)
    if type(index) is Vector or len(first) != machine.blocks:
        raise NotVectorisedError("of a grid sync to which some blocks come without their first threads")
    # Done as a used result, though the kernel drops it: the check below needs the counts that the blocks find.
    before = atomics.update(frame.child(first), "add", True, arrivals, index, (1,))
    if int(np.max(before.data if type(before) is Vector else before)) >= machine.launch.blocks:
        raise NotVectorisedError("the counter of a grid sync has not begun at 0")
    sync(frame)


# Put into the table from here, because this file imports calls.py.
METHODS[GridGroup] = {"sync": lambda site: sync(site.frame)}
register_lanes(GridGroup, lambda frame: GridGroup(frame.lanes.machine.cuda))
register_lanes(grid.grid_sync, counted_sync)
