"""The GPU without a GPU: `simulate` runs the Python body of any `numba.cuda` kernel, warps and barriers included.

`launch` (configuration, arguments) → `rewrite` and `operators` (the kernel's function, made to run here) → `scheduler`
(threads, warps, blocks) ↔ `api`, `warp`, `atomics`, `memory`, `functions`, `libdevice`, `arithmetic` (what the kernel
calls). It imports nothing else of normlab, and no Numba.
"""

from normlab.sim.errors import BarrierError, DeadlockError, MaskError, ShuffleError, SimulationError
from normlab.sim.launch import simulate
from normlab.sim.rewrite import register_twin

__all__ = [
    "BarrierError",
    "DeadlockError",
    "MaskError",
    "ShuffleError",
    "SimulationError",
    "register_twin",
    "simulate",
]
