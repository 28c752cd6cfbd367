"""Run all threads of many blocks at once: the first engine of `simulate`.

A GPU runs one instruction for the 32 lanes of a warp, and a mask says which lanes take part. This engine does the same
for thousands of lanes: it walks through the kernel's syntax tree once, and every variable is one NumPy array with an
element for each lane. What the scheduler does in 2 microseconds per thread takes a few nanoseconds per lane.

How to read the files:

- `values`: a variable of many lanes: uniform, a vector, or of several types. `arithmetic`, `casts` and `functions`
  compute with them, in the types of the scheduler's scalars (language/).
- `frames`: which lanes run, how an `if` divides them and how they come back. `statements` and `expressions` turn the
  syntax tree into functions of a frame, `running` runs kernel and device functions.
- `grids`: the meetings of all blocks, which then run in one chunk; `clusters`: those of clusters and of teams of warps.
- `memory`: global, shared and local arrays; `accesses`, `vectors`, `copies` and `atomics` load, store and update.
  `warps` answers shuffles and votes, `calls` says what a call means, `twins` helps an engine's intrinsics.
- `machine`: a chunk of blocks and the meetings of its threads. `races` proves that the order of threads does not
  matter; `rounds` tells the scheduler's order where it does, for atomic operations. `proof` asks for more: that a
  launch makes none of the mistakes that `sanitize` reports.
- `engine`: chunk after chunk; and the way back, if something cannot be proven (`refusal`).

What it promises: a launch that it runs to the end leaves the memory that the scheduler would leave, bit for bit, except
for the sign and payload of a NaN. Everything else is undone and left to the scheduler: errors, races, lanes that wait
at different places, an order of atomics that decides, and whatever has no rule here (activemask, polling loops,
`print`, vector types).
"""

from normlab.sim.machine.launch import first_engines
from normlab.sim.vectorised import clusters, copies, grids, vectors
from normlab.sim.vectorised.calls import register_lanes
from normlab.sim.vectorised.engine import attempt
from normlab.sim.vectorised.refusal import NotVectorisedError

# machine/launch.py cannot import this package, which imports it, so the package puts itself into the list there. The
# scheduler alone runs where this package is not imported.
if attempt not in first_engines:
    first_engines.append(attempt)

__all__ = ["NotVectorisedError", "attempt", "clusters", "copies", "grids", "register_lanes", "vectors"]
