"""Compute the backward with a block per row, which adds every element to its column's gradient by a global atomic.

Idea: the formula as it stands; a column's sum runs over rows, and rows are different blocks.
The atomics add in accumulator precision to `total_weight` and `total_bias`; a second kernel per parameter rounds these
sums into the gradients' dtype.
Moves: dy and the saved array twice (sums, write), grad_input once, and two atomic additions per element.
Bound by: the atomics. All n1 rows add to the same n2 addresses, one after another. The order of the rows differs from
run to run, so the last digits of grad_weight and grad_bias differ, too.
Measured: 0.25 / 0.38 of a copy in bfloat16 / float32; recomputing 0.17 / 0.36.
Next: apex's sums without atomics, in a kernel of their own.
"""

from functools import cache

from normlab.engine import accumulator, cast, cuda, load, store
from normlab.kernels.backward.operands import OPERANDS
from normlab.kernels.plan import GRID_LIMIT, Chains, Device, Plan, Scratch, Work
from normlab.kernels.problem import BackwardProblem
from normlab.kernels.step import BackwardStep, simulated_by_vectors
from normlab.stages.block import block_sums
from normlab.stages.gradient import corrected, input_gradient, leave_means, row_terms
from normlab.stages.recompute import normalised
from normlab.stages.warp import warp_sum_butterfly

THREADS = 128
MANY_ATOMICS = 4096  # columns from which a thread does 64 atomic additions, two for each of its columns
WARPS = THREADS // 32


@cuda.jit
def round_totals(total, gradient):
    """Round the accumulated sums of one parameter, (n2,), into its gradient."""
    column = cuda.grid(1)
    if column < total.shape[0]:  # the last block has more threads than columns
        store(gradient, column, load(total, column))


@cache
def build(dtype, rms, memory_efficient):
    """Return the main kernel for an accumulator dtype, a norm, and the output or the input as saved array."""

    @cuda.jit
    def backward_global_atomics(
        grad_output, saved, mean, invvar, weight, bias, eps, row_sums, grad_input, total_weight, total_bias
    ):
        # A whole kernel takes its arrays one by one: a launch has no NamedTuple among its arguments.
        buffer = cuda.shared.array((2, WARPS), dtype)
        n2 = saved.shape[1]
        row = cuda.blockIdx.x
        while row < saved.shape[0]:
            # First pass: the row's sums of g and g x̂. A thread takes every 128th column.
            sum_g = cast(0, invvar)
            sum_gx = cast(0, invvar)
            column = cuda.threadIdx.x
            while column < n2:
                g, gx = row_terms(grad_output, saved, row, column, mean, invvar, weight, bias, memory_efficient)
                sum_gx += gx
                if not rms:
                    sum_g += g
                column += THREADS
            sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer)
            mean_g = sum_g / cast(n2, invvar)
            mean_gx = corrected(sum_gx, row_sums, row) / cast(n2, invvar)
            if cuda.threadIdx.x == 0:  # every thread has the same means: one stores them
                leave_means(row_sums, row, mean_g, mean_gx)

            # Second pass: store grad_input, and add each element to its column's sums.
            column = cuda.threadIdx.x
            while column < n2:
                gradient = input_gradient(
                    grad_output, saved, row, column, mean, invvar, weight, bias, eps, memory_efficient, mean_g, mean_gx
                )
                store(grad_input, (row, column), gradient)
                grad = load(grad_output, (row, column))
                if total_weight is not None:
                    xhat = normalised(saved, row, column, mean, invvar, weight, bias, eps, memory_efficient)
                    # an atomic, because other blocks add their rows to the same column meanwhile
                    cuda.atomic.add(total_weight, column, grad * xhat)
                if total_bias is not None:
                    cuda.atomic.add(total_bias, column, grad)
                column += THREADS
            row += cuda.gridDim.x  # more rows than a grid has blocks

    return backward_global_atomics


def plan(problem: BackwardProblem, device: Device) -> Plan:
    """Return the plan, which does every problem."""
    n1, n2 = problem.shape
    wanted = ("weight", problem.weight), ("bias", problem.bias)
    given = [name for name, parameter in wanted if parameter is not None]
    absent = [name for name, parameter in wanted if parameter is None]
    options = accumulator(problem.invvar), problem.rms, problem.memory_efficient
    arguments = *OPERANDS, "row_sums", "grad_input", "total_weight", "total_bias"
    blocks = -(-n2 // THREADS)
    return Plan(
        "global_atomics",
        (
            Work(build, options, min(n1, GRID_LIMIT), THREADS, arguments),
            *(Work(lambda: round_totals, (), blocks, THREADS, (f"total_{name}", f"grad_{name}")) for name in given),
        ),
        "a block of 128 threads per row, whatever its length",
        row_chains_of(n2),
        column_chains_of(n1, n2),
        reads=2,
        scratch=tuple(Scratch(f"total_{name}", (n2,), problem.invvar.dtype, zeroed=True) for name in given),
        values=tuple((f"total_{name}", None) for name in absent),
    )


def row_chains_of(n2: int) -> Chains:
    """Return the chains along a row."""
    return Chains(terms=-(-n2 // THREADS), merges=7)


def column_chains_of(n1: int, n2: int) -> Chains:
    """Return the chains over rows: all of them, one after another."""
    return Chains(terms=n1, merges=0)


def simulated(n1: int, n2: int) -> float:
    """Return about how many seconds the simulator takes; it lets threads with many atomics run one after another."""
    return simulated_by_vectors(n1, n2) if n2 < MANY_ATOMICS else n1 * (0.006 + 8e-6 * n2)


STEP = BackwardStep(
    name="global_atomics",
    summary="a block per row, parameter gradients by atomics",
    ways=(plan,),
    row_chains=row_chains_of,
    simulated_seconds=simulated,
    column_chains=column_chains_of,
)
