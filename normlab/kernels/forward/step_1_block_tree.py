"""Normalise a row per block, and add up the threads' sums by a tree in shared memory.

Idea: thread t of 128 takes the columns t, t + 128, … in three passes over the row: mean, variance, output.
Moves: x three times, but coalesced: 32 neighbouring threads read 32 neighbouring elements, every byte of a sector is
used, and the second and third reading mostly hit the cache.
Bound by: the trees. There are two per row, each of log2(128) = 7 rounds with a barrier of the whole block per round.
Measured: 0.53 / 0.66 of a copy in bfloat16 / float32.
Next: let the 32 threads of a warp exchange values directly; most of those barriers go.
"""

import math
from functools import cache

from normlab.engine import accumulator, cast, cuda, float32, load, store
from normlab.kernels.forward.operands import OPERANDS
from normlab.kernels.plan import GRID_LIMIT, Chains, Device, Plan, Work
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.stages.block import block_tree_sum
from normlab.stages.recompute import affine, element, normalised_from_input

THREADS = 128


@cache
def build(dtype):
    """Return the kernel for an accumulator dtype, which is also its shared memory's."""

    @cuda.jit
    def forward_block_tree(x, weight, bias, eps, output, mean, invvar):
        buffer = cuda.shared.array(THREADS, dtype)
        n2 = x.shape[1]
        row = cuda.blockIdx.x
        while row < x.shape[0]:
            # Mean pass; RMSNorm has none, and centres on 0. The barriers are in `block_tree_sum`.
            center = cast(0, invvar)
            if mean is not None:
                column = cuda.threadIdx.x
                while column < n2:  # 32 neighbouring threads read 32 neighbouring elements
                    center += load(x, (row, column))
                    column += THREADS
                center = block_tree_sum(center, buffer) / cast(n2, invvar)
                if cuda.threadIdx.x == 0:
                    store(mean, row, center)

            # Variance pass: deviations from the mean, so it cannot begin before the mean is known.
            square_sum = cast(0, invvar)
            column = cuda.threadIdx.x
            while column < n2:
                # From the mean: the difference E[x²] - mean² would lose digits where the mean is large.
                deviation = load(x, (row, column)) - center
                square_sum += deviation * deviation
                column += THREADS
            square_sum = block_tree_sum(square_sum, buffer)
            scale = float32(1) / math.sqrt(square_sum / cast(n2, invvar) + eps)
            if cuda.threadIdx.x == 0:
                store(invvar, row, scale)

            # Output pass: the third reading of x, mostly from the cache.
            column = cuda.threadIdx.x
            while column < n2:
                value = normalised_from_input(load(x, (row, column)), center, scale)
                store(output, (row, column), affine(value, element(weight, column), element(bias, column)))
                column += THREADS
            row += cuda.gridDim.x

    return forward_block_tree


def plan(problem: ForwardProblem, device: Device) -> Plan:
    """Return the plan, which does every problem."""
    n1, n2 = problem.shape
    work = Work(build, (accumulator(problem.invvar),), min(n1, GRID_LIMIT), THREADS, OPERANDS)
    why, reads = "a block of 128 threads per row, whatever its length", 2 if problem.mean is None else 3
    return Plan("block_tree", (work,), why, row_chains_of(n2), reads=reads)


def row_chains_of(n2: int) -> Chains:
    """Return the chains along a row."""
    return Chains(terms=-(-n2 // THREADS), merges=7)


STEP = ForwardStep(
    name="block_tree",
    summary="a block per row, trees in shared memory",
    ways=(plan,),
    row_chains=row_chains_of,
    statistics="two_pass",
)
