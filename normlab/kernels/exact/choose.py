"""Find the columns at risk on the device: a stream compaction, one block per norm.

Each thread tests one column. A ballot counts the finds of a thread's earlier lanes, and shared memory holds the counts
of the earlier warps: together they give the find its slot. The list is in the order of the columns, so the same
parameters always give the same list.
"""

from typing import Any, NamedTuple

import numpy as np

from normlab.engine import cuda, uint32
from normlab.kernels.exact.risk import Limits, at_risk
from normlab.stages.recompute import element
from normlab.stages.vector import whole_warps
from normlab.stages.warp import ALL_LANES

MAX_THREADS = 1024  # the most a block may have: one block does all columns, so that their order is simple
MAX_WARPS = MAX_THREADS // 32


class Norm(NamedTuple):
    """What the columns at risk of a norm depend on, besides `Limits`.

    The parameters are weight[weight_at : weight_at + n2], or None, and bias likewise. spread: a scalar, as `at_risk`
    takes it.
    """

    n2: Any
    weight: Any
    weight_at: Any
    bias: Any
    bias_at: Any
    spread: Any


@cuda.jit(device=True)
def list_columns(norm, limits, columns, start, end):
    """Write the columns at risk into columns[start:end], as many as fit, then -1; return how many there are.

    norm: `Norm`. limits: `Limits`. columns: int32.
    """
    found_by_warp = cuda.shared.array(MAX_WARPS, uint32)
    thread = cuda.threadIdx.x
    warp = thread >> 5
    found = 0
    top = 0
    # Each round, the block asks about as many columns as it has threads. All threads take part in every round, because
    # ballots and barriers need them.
    while top < norm.n2:
        column = top + thread
        risky = 0
        if column < norm.n2:
            gamma = element(norm.weight, norm.weight_at + column)
            beta = element(norm.bias, norm.bias_at + column)
            risky = int(at_risk(gamma, beta, norm.spread, limits))
        ballot = cuda.ballot_sync(ALL_LANES, risky)
        if thread & 31 == 0:
            found_by_warp[warp] = cuda.popc(ballot)
        cuda.syncthreads()  # all warps' counts are in shared memory before they are read
        # earlier rounds, then this warp's earlier lanes, then earlier warps: slots are in the columns' order
        slot = start + found + cuda.popc(ballot & ((1 << (thread & 31)) - 1))
        for other in range(warp):
            slot += found_by_warp[other]
        if risky > 0 and slot < end:
            columns[slot] = column
        found += cuda.syncthreads_count(risky)  # a barrier, too: all have read the counts before the next round's come
        top += cuda.blockDim.x
    slot = start + found + thread
    while slot < end:  # a list that is reused must not keep columns of an earlier count
        columns[slot] = -1
        slot += cuda.blockDim.x
    return found


@cuda.jit
def choose_columns(n2, weight, bias, spread, smallest, normal, ratio, columns, counts):
    """List the columns at risk of one norm. Grid 1.

    n2: int64. weight, bias: (n2,) or None. spread: (1,). smallest, normal, ratio: `Limits`. columns: (capacity,) int32.
    counts: (3,), int64. counts[0] is set to the number of columns at risk; counts[1] grows by those without a slot, and
    counts[2] by 1 per call.
    """
    capacity = columns.shape[0]
    norm = Norm(n2, weight, 0, bias, 0, spread[0])
    found = list_columns(norm, Limits(smallest, normal, ratio), columns, 0, capacity)
    if cuda.threadIdx.x == 0:
        counts[0] = found
        if found > capacity:  # added up, so that the host may look after many replays of a CUDA graph
            counts[1] += found - capacity
        counts[2] += 1


def launch_choice(
    launch: Any, n2: int, weight: Any, bias: Any, spread: Any, limits: Limits, columns: Any, counts: Any
) -> None:
    """Queue the kernel."""
    threads = min(MAX_THREADS, whole_warps(n2))  # one block: it is one round up to 1024 columns
    launch(choose_columns, 1, threads, np.int64(n2), weight, bias, spread, *limits, columns, counts)
