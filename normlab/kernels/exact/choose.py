"""The columns at risk, found on the device: a stream compaction by one block.

Each thread asks about one column; a ballot numbers the finds within a warp, and the warps' counts in shared memory
number the warps. The order is the columns', so the same parameters always give the same list.
"""

from typing import Any

import numpy as np

from normlab.engine import cuda, uint32
from normlab.kernels.exact.risk import RATIO, at_risk
from normlab.stages.recompute import element
from normlab.stages.vector import whole_warps
from normlab.stages.warp import ALL_LANES

MAX_THREADS = 1024
MAX_WARPS = MAX_THREADS // 32
MARGIN = 2  # a column is near risk if it would be at risk with a gamma so many times smaller
NEAR = 2**32  # what `counts` counts those in


@cuda.jit
def choose_columns(n2, weight, bias, smallest, ratio, margin, columns, counts):
    """Write the first columns at risk into `columns`, (capacity,), int32, then -1; and how many there are.

    n2: int64. weight, bias: (n2,) or None. smallest: see `risk`; ratio, margin: RATIO and MARGIN. These three come in
    accumulator precision: an int would make float64 of them. counts: (2,), int64: how many there are, plus NEAR times
    those that are at risk or near it, in one number because the host may be reading it; and, added to what stood there,
    those that found no room.
    """
    found_by_warp = cuda.shared.array(MAX_WARPS, uint32)
    thread = cuda.threadIdx.x
    warp = thread >> 5
    lane = thread & 31
    found = 0
    near = 0
    top = 0
    while top < n2:
        column = top + thread
        risky = 0
        nearly = 0
        if column < n2:
            gamma = element(weight, column)
            beta = element(bias, column)
            risky = int(at_risk(gamma, beta, smallest, ratio))
            nearly = int(at_risk(gamma, beta, margin * smallest, ratio / margin))
        ballot = cuda.ballot_sync(ALL_LANES, risky)
        if lane == 0:
            found_by_warp[warp] = cuda.popc(ballot)
        near += cuda.syncthreads_count(nearly)  # and all warps' counts are in shared memory before they are read
        place = found + cuda.popc(ballot & ((1 << lane) - 1))
        for other in range(warp):
            place += found_by_warp[other]
        if risky > 0 and place < columns.shape[0]:
            columns[place] = column
        found += cuda.syncthreads_count(risky)  # and all have read the counts before the next round's are written
        top += cuda.blockDim.x
    if thread == 0:
        counts[0] = found + NEAR * near
        if found > columns.shape[0]:
            counts[1] += found - columns.shape[0]
    place = found + thread
    while place < columns.shape[0]:
        columns[place] = -1
        place += cuda.blockDim.x


def launch_choice(launch: Any, n2: int, weight: Any, bias: Any, smallest: Any, columns: Any, counts: Any) -> None:
    """Queue the kernel."""
    threads = min(MAX_THREADS, whole_warps(n2))
    limits = smallest, smallest.dtype.type(RATIO), smallest.dtype.type(MARGIN)
    launch(choose_columns, 1, threads, np.int64(n2), weight, bias, *limits, columns, counts)
