"""Count the memory requests of a kernel's warps, under Nsight Compute's names.

`trace` runs a kernel with a `Recorder` as observer. The vectorised engine tells the recorder of all lanes at once
(lanes.py). If the scheduler runs the launch, it tells of each lane's accesses (recorder.py, sites.py), which are logged
and grouped into requests (log.py). The `Tally` (tally.py) computes what each request (request.py) costs (model.py) and
adds the costs up (counts.py, heat.py). `data.py` holds the result; tables, pictures and the HTML report show it.

Where the model stops: it counts the accesses of the source. A compiler may hoist a load out of a loop, merge two loads
of the same address, or drop a load whose value is not used. Caches, timing and DRAM are not modelled, and local memory
and constants are not counted. Lanes run together when they reach an instruction by the same calls and loop turns
(language/paths.py); hardware may split them further. Without readable source (a kernel from `exec`) the turns of a
loop are told apart by how often a lane has executed the instruction.
"""

from normlab.sim.language.source import Line
from normlab.sim.tracing.counts import METRICS, Counts
from normlab.sim.tracing.data import LineCounts
from normlab.sim.tracing.request import Request
from normlab.sim.tracing.trace import Trace, trace

__all__ = ["METRICS", "Counts", "Line", "LineCounts", "Request", "Trace", "trace"]
