"""A block per row; every element is added to its column's gradient by an atomic in global memory.

Moves: dy and the saved array twice (sums, write), grad_input once, and two atomic additions an element.
Bound by: the atomics. All n1 rows queue for the same n2 addresses, and the order in which they win is not determined, so
neither are the last digits of grad_weight and grad_bias.
Next: apex's sums without atomics, in a kernel of their own.
"""

from functools import cache

from normlab.engine import accumulator, cast, cuda, widen
from normlab.kernels.step import BackwardProblem, BackwardStep, Chains
from normlab.stages.block import block_sums
from normlab.stages.gradient import input_gradient, row_terms
from normlab.stages.recompute import normalised
from normlab.stages.warp import warp_sum_butterfly

THREADS = 128
WARPS = THREADS // 32
GRID_LIMIT = 2**31 - 1


@cuda.jit
def clear(total_weight, total_bias):
    """Zero the accumulators of grad_weight and grad_bias: (n2,), or None."""
    column = cuda.grid(1)
    if total_weight is not None and column < total_weight.shape[0]:
        total_weight[column] = cast(0, total_weight)
    if total_bias is not None and column < total_bias.shape[0]:
        total_bias[column] = cast(0, total_bias)


@cuda.jit
def store(total_weight, total_bias, grad_weight, grad_bias):
    """Round the accumulators into grad_weight and grad_bias."""
    column = cuda.grid(1)
    if total_weight is not None and column < total_weight.shape[0]:
        grad_weight[column] = cast(total_weight[column], grad_weight)
    if total_bias is not None and column < total_bias.shape[0]:
        grad_bias[column] = cast(total_bias[column], grad_bias)


@cache
def build(dtype, rms, memory_efficient):
    """The main kernel for an accumulator dtype, a norm and what was saved."""

    @cuda.jit
    def backward_global_atomics(
        grad_output, saved, mean, invvar, weight, bias, eps, grad_input, total_weight, total_bias
    ):
        buffer = cuda.shared.array((2, WARPS), dtype)
        n2 = saved.shape[1]
        row = cuda.blockIdx.x
        while row < saved.shape[0]:
            sum_g = cast(0, invvar)
            sum_gx = cast(0, invvar)
            for column in range(cuda.threadIdx.x, n2, THREADS):
                g, gx = row_terms(grad_output, saved, row, column, mean, invvar, weight, bias, memory_efficient)
                sum_gx += gx
                if not rms:
                    sum_g += g
            sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer)
            mean_g = sum_g / cast(n2, invvar)
            mean_gx = sum_gx / cast(n2, invvar)
            for column in range(cuda.threadIdx.x, n2, THREADS):
                gradient = input_gradient(
                    grad_output, saved, row, column, mean, invvar, weight, bias, eps, memory_efficient, mean_g, mean_gx
                )
                grad_input[row, column] = cast(gradient, grad_input)
                grad = widen(grad_output[row, column])
                if total_weight is not None:
                    xhat = normalised(saved, row, column, mean, invvar, weight, bias, eps, memory_efficient)
                    cuda.atomic.add(total_weight, column, grad * xhat)
                if total_bias is not None:
                    cuda.atomic.add(total_bias, column, grad)
            row += cuda.gridDim.x

    return backward_global_atomics


def _run(launch, empty, problem: BackwardProblem):
    n1, n2 = problem.saved.shape
    total_weight = None if problem.weight is None else empty((n2,), problem.invvar.dtype)
    total_bias = None if problem.bias is None else empty((n2,), problem.invvar.dtype)
    column_blocks = -(-n2 // THREADS)
    launch(clear, column_blocks, THREADS, total_weight, total_bias)
    launch(
        build(accumulator(problem.invvar), problem.rms, problem.memory_efficient),
        min(n1, GRID_LIMIT),
        THREADS,
        *problem.operands,
        problem.grad_input,
        total_weight,
        total_bias,
    )
    launch(store, column_blocks, THREADS, total_weight, total_bias, problem.grad_weight, problem.grad_bias)


STEP = BackwardStep(
    name="global_atomics",
    summary="a block per row, parameter gradients by atomics",
    run=_run,
    row_chains=lambda n2: Chains(terms=-(-n2 // THREADS), merges=7),
    column_chains=lambda n1: Chains(terms=n1, merges=0),
)
