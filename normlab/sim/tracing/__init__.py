"""Traces: what a kernel's warps ask of memory, in Nsight Compute's words.

`trace` runs a kernel under the eyes of a `Recorder` (recorder.py), which logs what each lane does (sites.py, log.py).
The `Tally` (tally.py) makes requests of it (request.py), prices them (model.py) and counts them (counts.py, heat.py).
Tables, pictures and the HTML report show the outcome.

Where the model stops: it counts the accesses of the source. A compiler may hoist a load out of a loop, merge two of
the same address, or drop one nobody uses. Caches, timing and DRAM are not modelled, local memory and constants not
counted. Lanes run together when they reach an instruction by the same calls and loop turns (paths.py); hardware may
split them further. Without readable source (a kernel from `exec`) turns of loops are told by how often a lane came by.

A trace takes 2 to 5 times as long as the simulation, up to 9 times for a loop that does nothing but load.
"""

from normlab.sim.language.source import Line
from normlab.sim.tracing.counts import METRICS, Counts
from normlab.sim.tracing.data import LineCounts
from normlab.sim.tracing.request import Request
from normlab.sim.tracing.trace import Trace, trace

__all__ = ["METRICS", "Counts", "Line", "LineCounts", "Request", "Trace", "trace"]
