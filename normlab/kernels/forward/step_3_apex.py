"""apex's kernel: one pass for both moments, by Welford's update and Chan's merge (apex: cuApplyLayerNorm,
cuApplyRMSNorm).

A block of 32 x 4 threads takes a row; each thread runs Welford over four neighbouring elements a step; lanes merge by
rotating shuffles, warps by halving through shared memory. Blocks stride over the rows: a grid has at most 65535 of
them.
Moves: x twice (statistics, write) and y once.
Bound by: the division in every Welford update, one after another, where step 2 had an addition; and by one element a
load.
Measured: 0.42 / 0.67 of a copy in bfloat16 / float32; apex itself 0.43 / 0.80.
The divisions cost more than the third reading did.
Next: three passes again, but many independent sums in flight.
"""

import math
from functools import cache

from normlab.engine import accumulator, cast, cuda, float32, load, store
from normlab.kernels.forward.operands import OPERANDS
from normlab.kernels.plan import GRID_LIMIT_Y, Chains, Device, Plan, Work
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.stages.recompute import affine, element, normalised_from_input
from normlab.stages.row import row_mean_square, row_moments
from normlab.stages.warp import thread_index

WARPS = 4
THREADS = 32 * WARPS


@cache
def build(dtype):
    """The kernel for an accumulator dtype, which its shared memory has."""

    @cuda.jit
    def forward_apex(x, weight, bias, eps, output, mean, invvar):
        buffer = cuda.shared.array((3, WARPS), dtype)
        thread = thread_index()
        # As in apex the rows are on y, where a grid has at most 65,535 blocks: hence the loop.
        row = cuda.blockIdx.y
        while row < x.shape[0]:
            if mean is not None:
                center, variance = row_moments(x, row, buffer)
            else:
                # RMSNorm: subtracting 0 below changes no value, so one line of code serves both norms.
                center = cast(0, invvar)
                variance = row_mean_square(x, row, buffer)
            # All threads have the variance, so each computes the scale, and no barrier is needed to hand it out.
            scale = float32(1) / math.sqrt(variance + eps)
            column = thread
            while column < x.shape[1]:
                value = normalised_from_input(load(x, (row, column)), center, scale)
                store(output, (row, column), affine(value, element(weight, column), element(bias, column)))
                column += THREADS
            if thread == 0:
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)
            # No barrier here: the row's stages begin with one, before they write to `buffer` again.
            row += cuda.gridDim.y

    return forward_apex


def plan(problem: ForwardProblem, device: Device) -> Plan:
    """Return the plan, which does every problem."""
    n1, n2 = problem.shape
    # as in apex, the rows are on gridDim.y
    work = Work(build, (accumulator(problem.invvar),), (1, min(n1, GRID_LIMIT_Y)), (32, WARPS), OPERANDS)
    return Plan(
        "apex", (work,), "apex's block of 32 x 4 threads per row, whatever its length", row_chains_of(n2), reads=2
    )


def row_chains_of(n2: int) -> Chains:
    """Return the chains along a row."""
    return Chains(terms=4 * -(-n2 // (4 * THREADS)), merges=7)


STEP = ForwardStep(
    name="apex",
    summary="one pass: Welford, Chan, rotating shuffles",
    ways=(plan,),
    row_chains=row_chains_of,
    statistics="welford",
)
