"""Read the row in three passes, a block of columns at a time (the row kernel of the Triton LayerNorm tutorial).

Idea: one pass for the mean, one for the variance and one for the output, with a thread block per row. A block of
columns is eight elements per thread. A thread therefore has eight loads in flight. It adds them into eight sums of its
own, which it adds up only once, at the row's end. Narrow rows get fewer threads, because idle warps still wait at every
barrier.
Moves: x three times by the instructions, once or twice from memory: later passes find short rows in the cache.
Bound by: loads of one element, 2 or 4 bytes, where the hardware can take 16.
Measured: 0.51 / 0.63 of a copy in bfloat16 / float32: no better than step 2, because both are bound by the number of
load instructions.
Next: 16-byte vectors, the row kept in registers, one pass over memory.
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

LOADS = 8  # independent loads and sums per thread
MAX_THREADS = 128  # more rows in flight on a multiprocessor, and fewer warps to merge at a barrier, than with 256


def threads_for(n2: int) -> int:
    """Return the block size: the power of two whose block of columns just covers the row, from 32 to MAX_THREADS."""
    return min(MAX_THREADS, max(32, 1 << (-(-n2 // LOADS) - 1).bit_length()))


@cuda.jit(device=True)
def total(sums):
    """Return the sum of a thread's LOADS sums."""
    result = sums[0]
    for k in range(1, LOADS):
        result += sums[k]
    return result


@cache
def build(dtype, threads):
    """Return the kernel for an accumulator dtype and a block size, which its arrays and loops need as constants."""
    block_columns = LOADS * threads
    warps = threads // 32

    @cuda.jit
    def forward_column_blocks(x, weight, bias, eps, output, mean, invvar):
        buffer = cuda.shared.array((2, warps), dtype)
        sums = cuda.local.array(LOADS, dtype)  # in registers: only constants index it
        n2 = x.shape[1]
        row = cuda.blockIdx.x
        while row < x.shape[0]:
            # Mean pass: eight loads in flight, eight sums. RMSNorm has none, and centres on 0.
            center = cast(0, invvar)
            if mean is not None:
                for k in range(LOADS):
                    sums[k] = cast(0, invvar)
                start = cuda.threadIdx.x
                while start < n2:
                    for k in range(LOADS):
                        column = start + k * threads
                        if column < n2:
                            sums[k] += load(x, (row, column))
                    start += block_columns
                center = block_sum(warp_sum_butterfly(total(sums)), buffer)
                # n2 in the accumulator's dtype: an integer divisor would make the quotient float64.
                center /= cast(n2, invvar)

            # Variance pass.
            for k in range(LOADS):
                sums[k] = cast(0, invvar)
            start = cuda.threadIdx.x
            while start < n2:
                for k in range(LOADS):
                    column = start + k * threads
                    if column < n2:  # a column past the end must not count as (0 - mean)²
                        deviation = load(x, (row, column)) - center
                        sums[k] += deviation * deviation
                start += block_columns
            square_sum = block_sum(warp_sum_butterfly(total(sums)), buffer)
            scale = float32(1) / math.sqrt(square_sum / cast(n2, invvar) + eps)

            # Write pass.
            start = cuda.threadIdx.x
            while start < n2:
                for k in range(LOADS):
                    column = start + k * threads
                    if column < n2:
                        value = normalised_from_input(load(x, (row, column)), center, scale)
                        result = affine(value, element(weight, column), element(bias, column))
                        store(output, (row, column), result)
                start += block_columns
            if cuda.threadIdx.x == 0:
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)
            row += cuda.gridDim.x

    return forward_column_blocks


def plan(problem: ForwardProblem, device: Device) -> Plan:
    """Return the plan, which does every problem."""
    n1, n2 = problem.shape
    threads = threads_for(n2)
    work = Work(build, (accumulator(problem.invvar), threads), min(n1, GRID_LIMIT), threads, OPERANDS)
    why = f"a block of {threads} threads per row, {LOADS} elements each at a time; does rows of every length and dtype"
    return Plan("column_blocks", (work,), why, _chains(n2), reads=2 if problem.mean is None else 3)


def _chains(n2: int) -> Chains:
    """Return the chains along a row: one sum's loads, the thread's other sums, then the block's threads."""
    threads = threads_for(n2)
    return Chains(terms=-(-n2 // (LOADS * threads)) + LOADS - 1, merges=threads.bit_length() - 1)


STEP = ForwardStep(
    name="column_blocks",
    summary="three passes, a block of columns at a time",
    ways=(plan,),
    row_chains=_chains,
    statistics="two_pass",
)
