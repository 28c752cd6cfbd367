"""Normalise a row per block, and add up by warp shuffles, with shared memory only between warps.

Idea: five shuffles replace five rounds of step 1's tree. They need no shared memory and no barrier, because the lanes
of a warp read each other's registers. The four warps' sums are then merged in two rounds through shared memory.
Moves: what step 1 moves.
Bound by: reading x three times. Long rows leave the L1 cache between the passes.
Measured: 0.55 / 0.67 of a copy in bfloat16 / float32; the best rung so far.
Next: Welford's update finds mean and variance in one pass.
"""

import math
from functools import cache

from normlab.engine import accumulator, cast, cuda, float32, load, store
from normlab.kernels.forward.operands import OPERANDS
from normlab.kernels.plan import GRID_LIMIT, Chains, Device, Plan, Work
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.stages.block import block_sum
from normlab.stages.recompute import affine, element, normalised_from_input
from normlab.stages.warp import warp_sum_butterfly

THREADS = 128
WARPS = THREADS // 32


@cache
def build(dtype):
    """Return the kernel for an accumulator dtype, which is also its shared memory's."""

    @cuda.jit
    def forward_warp_shuffle(x, weight, bias, eps, output, mean, invvar):
        buffer = cuda.shared.array((2, WARPS), dtype)
        n2 = x.shape[1]
        row = cuda.blockIdx.x
        while row < x.shape[0]:
            # Mean pass; RMSNorm has none, and centres on 0. The barriers are in `block_sum`.
            center = cast(0, invvar)
            if mean is not None:
                column = cuda.threadIdx.x
                while column < n2:
                    center += load(x, (row, column))
                    column += THREADS
                center = block_sum(warp_sum_butterfly(center), buffer) / cast(n2, invvar)
                if cuda.threadIdx.x == 0:
                    store(mean, row, center)

            # Variance pass: five shuffles per warp, then two rounds through shared memory for four warps.
            square_sum = cast(0, invvar)
            column = cuda.threadIdx.x
            while column < n2:
                # From the mean: the difference E[x²] - mean² would lose digits where the mean is large.
                deviation = load(x, (row, column)) - center
                square_sum += deviation * deviation
                column += THREADS
            square_sum = block_sum(warp_sum_butterfly(square_sum), buffer)
            scale = float32(1) / math.sqrt(square_sum / cast(n2, invvar) + eps)
            if cuda.threadIdx.x == 0:
                store(invvar, row, scale)

            # Output pass: the third reading of x.
            column = cuda.threadIdx.x
            while column < n2:
                value = normalised_from_input(load(x, (row, column)), center, scale)
                store(output, (row, column), affine(value, element(weight, column), element(bias, column)))
                column += THREADS
            row += cuda.gridDim.x  # more rows than a grid has blocks

    return forward_warp_shuffle


def plan(problem: ForwardProblem, device: Device) -> Plan:
    """Return the plan, which does every problem."""
    n1, n2 = problem.shape
    work = Work(build, (accumulator(problem.invvar),), min(n1, GRID_LIMIT), THREADS, OPERANDS)
    why, reads = "a block of 128 threads per row, whatever its length", 2 if problem.mean is None else 3
    return Plan("warp_shuffle", (work,), why, row_chains_of(n2), reads=reads)


def row_chains_of(n2: int) -> Chains:
    """Return the chains along a row."""
    return Chains(terms=-(-n2 // THREADS), merges=7)


STEP = ForwardStep(
    name="warp_shuffle",
    summary="a block per row, sums by warp shuffles",
    ways=(plan,),
    row_chains=row_chains_of,
    statistics="two_pass",
)
