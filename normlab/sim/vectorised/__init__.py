"""Run all threads of many blocks at once: the first engine of `simulate`."""

from normlab.sim.machine.launch import first_engines
from normlab.sim.vectorised import copies, vectors
from normlab.sim.vectorised.calls import register_lanes
from normlab.sim.vectorised.engine import attempt
from normlab.sim.vectorised.refusal import NotVectorisedError

if attempt not in first_engines:
    first_engines.append(attempt)

__all__ = ["NotVectorisedError", "attempt", "copies", "register_lanes", "vectors"]
