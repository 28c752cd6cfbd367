"""Normalise a row per block, with vectors of 16 bytes and the row in registers.

Idea: a thread loads up to eight neighbouring elements by one instruction, a few such vectors before it uses the first.
It keeps them: the mean, the squares and the output all come from registers, and x is read once.
Where a row begins at no multiple of 16 bytes, or ends inside a vector, the vectors are narrower, down to one element.
Rows that do not fit the registers of a block, and float64, go to step 4.
Moves: x once, the output once: the least there is.
Bound by: waiting. Each of the two sums takes the block through a tree of barriers, and meanwhile nothing is loaded.
Measured: record ladder_forward_h200; about 0.9 of a copy.
Next: one barrier, and several rows per block.
"""

import math
from functools import cache

from normlab.engine import accumulator, cast, cuda, float32, store
from normlab.kernels.forward import step_4_column_blocks
from normlab.kernels.forward.operands import OPERANDS
from normlab.kernels.plan import FLOAT32_ALONE, GRID_LIMIT, Chains, Device, Plan, Refusal, Work, longest, row_chains_of
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.stages.block import block_sum
from normlab.stages.output import row_writer
from normlab.stages.vector import ThreadMap, map_threads, row_loader, whole_warps, widest
from normlab.stages.warp import warp_sum_butterfly

VECTORS = 4  # per thread, all in flight at once; more only where 1024 threads are too few
MAX_THREADS = 1024
MAX_ELEMENTS = 32  # per thread: the 64 registers that 1024 threads leave hold them and little else


def thread_map_for(n2: int, width: int) -> ThreadMap | None:
    """Return the thread map of a row in a block; None if the row does not fit the block's registers."""
    # threads first: a thread gets a fifth vector only when a block has no more threads
    threads = min(MAX_THREADS, whole_warps(-(-n2 // (width * VECTORS))))
    thread_map = map_threads(n2, width, threads)
    return thread_map if thread_map.elements <= MAX_ELEMENTS else None


@cache
def build(dtype, thread_map: ThreadMap):
    """Return the kernel for an accumulator dtype and a thread map."""
    vectors, width, span, _ = thread_map.loop
    elements, warps, filled = thread_map.elements, thread_map.warps, thread_map.filled
    load_row, write_row = row_loader(thread_map), row_writer(thread_map, dtype)

    @cuda.jit(launch_bounds=(thread_map.threads, 1))
    def forward_vectors(x, weight, bias, eps, output, mean, invvar):
        buffer = cuda.shared.array((2, warps), dtype)
        values = cuda.local.array(elements, dtype)
        n2 = x.shape[1]
        first = cuda.threadIdx.x * width
        row = cuda.blockIdx.x
        while row < x.shape[0]:
            # Fetch: all of the thread's loads are in flight before it waits for the first.
            load_row(values, x, row, first)

            # Mean, over registers; RMSNorm has none, and centres on 0. The barriers are in `block_sum`.
            center = cast(0, invvar)
            if mean is not None:
                total = cast(0, invvar)
                for k in range(elements):
                    total += values[k]
                center = block_sum(warp_sum_butterfly(total), buffer) / cast(n2, invvar)

            # Variance, over registers: the row is not read again.
            square_sum = cast(0, invvar)
            for v in range(vectors):
                if v < filled or first + v * span < n2:  # what lies past the end must not count as (0 - mean)²
                    for k in range(width):
                        deviation = values[v * width + k] - center
                        square_sum += deviation * deviation
            square_sum = block_sum(warp_sum_butterfly(square_sum), buffer)
            scale = float32(1) / math.sqrt(square_sum / cast(n2, invvar) + eps)

            # Output, from registers.
            write_row(values, None, output, (row, first), weight, bias, center, scale)
            if cuda.threadIdx.x == 0:  # every thread has the same statistics: one stores them
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)
            row += cuda.gridDim.x

    return forward_vectors


def plan(problem: ForwardProblem, device: Device) -> Plan | Refusal:
    """Return the plan, if the registers of a block hold a row."""
    n1, n2 = problem.shape
    if problem.in_float64:
        return FLOAT32_ALONE
    thread_map = thread_map_for(n2, widest(n2, *problem.matrices))
    if thread_map is None:
        return Refusal(f"a block's {MAX_THREADS} threads with {MAX_ELEMENTS} elements each do not hold {n2:,} columns")
    work = Work(build, (accumulator(problem.invvar), thread_map), min(n1, GRID_LIMIT), thread_map.threads, OPERANDS)
    return Plan(
        "vectors", (work,), f"up to {VECTORS} vectors per thread, then as many as it takes", row_chains_of(thread_map)
    )


def _chains(n2: int) -> Chains:
    thread_maps = [thread_map_for(n2, width) for width in (1, 2, 4, 8) if n2 % width == 0]
    own = [row_chains_of(thread_map) for thread_map in thread_maps if thread_map is not None]
    return longest(*own, step_4_column_blocks.STEP.row_chains(n2))


STEP = ForwardStep(
    name="vectors",
    summary="16-byte vectors, the row in registers",
    ways=(plan, step_4_column_blocks.plan),
    row_chains=_chains,
    statistics="two_pass",
)
