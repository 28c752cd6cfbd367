"""Compute grad_input and the columns' sums in one persistent kernel, which reads dy and the saved array once.

Idea: as many blocks as the GPU holds stay to the end. Block b takes the rows b, b + blocks, … one after another. A
thread has the same columns of every row, so it adds up their parameter gradients in registers over all of its rows.
After its last row each block writes one row of partial sums, and a second, small kernel adds up these rows
(`final_sums`). Which thread adds which value is fixed, and so are the bits.
A thread has a few 16-byte vectors of the row. It keeps them in registers between the row's two sums and the gradient,
as in the forward's step 5. Rows that do not fit the registers, and float64, go to step 1.
Moves: dy and the saved array once, grad_input once: the least there is, and a few partial sums.
Bound by: waiting. Between two rows a block waits first for the loads, then for its slowest warp.
Measured: record ladder_backward_h200; about 0.6 of a copy.
Next: fetch rows ahead, and let one row's sums travel while another row is worked on.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import accumulator, cast, cuda, load, store, store_vector_from
from normlab.kernels.backward import final_sums, step_1_apex
from normlab.kernels.backward.operands import OPERANDS
from normlab.kernels.plan import FLOAT32_ALONE, Chains, Device, Plan, Refusal, Work, longest, row_chains_of
from normlab.kernels.problem import BackwardProblem
from normlab.kernels.step import BackwardStep, simulated_by_vectors
from normlab.stages.block import block_sums
from normlab.stages.gradient import corrected, leave_means
from normlab.stages.output import parameter_loader
from normlab.stages.recompute import affine, clamp_by_magnitude, normalised_from_input, without_bias
from normlab.stages.vector import ThreadMap, map_threads, row_loader, whole_warps, widest
from normlab.stages.warp import warp_sum_butterfly

VECTORS = 2  # per thread, as long as MAX_THREADS suffice
MAX_THREADS = 512  # per block
MAX_ELEMENTS = 16  # per thread: for each, registers hold the saved value, dy and two sums
RESIDENT_THREADS = 1024  # per multiprocessor, of all blocks together


def thread_map_for(n2: int, width: int) -> ThreadMap | None:
    """Return the thread map of a row of n2 columns, in vectors of `width`; None if registers do not hold the row."""
    thread_map = map_threads(n2, width, min(MAX_THREADS, whole_warps(-(-n2 // (width * VECTORS)))))
    return thread_map if thread_map.elements <= MAX_ELEMENTS else None


def thread_map_of(problem: BackwardProblem) -> ThreadMap | None:
    """Return the thread map of a problem's rows; None if this step's kernel does not do the problem."""
    if problem.in_float64:
        return None
    n2 = problem.saved.shape[1]
    return thread_map_for(n2, widest(n2, *problem.matrices, problem.weight, problem.bias))


def blocks_for(thread_map: ThreadMap, n1: int, processors: int) -> int:
    """Return the number of persistent blocks for n1 rows on a GPU with so many multiprocessors."""
    # as many as stay on the GPU at once: one more block would begin when the others end, and add a row of partial sums
    return min(n1, processors * (RESIDENT_THREADS // thread_map.threads))


class Registers(NamedTuple):
    """A thread's elements of its columns, in registers: the saved row, dy, and the sums for both gradients."""

    values: Any
    grads: Any
    sums_weight: Any
    sums_bias: Any


@cache
def build(dtype, thread_map: ThreadMap, rms, memory_efficient):
    """Return the kernel for an accumulator dtype, a thread map and a norm.

    memory_efficient: the saved array is the forward's output, from which x̂ is recomputed; else it is the input.

    The kernel's mean is None for RMSNorm and if memory_efficient. row_sums: None, or in the exact mode (3, n1): the
    exact mode corrects a row's sum of g x̂ by row 0, and needs the row's means, which go to rows 1 and 2.
    """
    width, elements, warps = thread_map.width, thread_map.elements, thread_map.warps
    load_row, write_sums = row_loader(thread_map), sums_writer(thread_map)
    pass_1, pass_2 = first_pass(dtype, thread_map, rms, memory_efficient), second_pass(thread_map)

    @cuda.jit(launch_bounds=(thread_map.threads, 1))
    def backward_fused(
        grad_output, saved, mean, invvar, weight, bias, eps, row_sums, grad_input, part_weight, part_bias
    ):
        # Prologue: the thread's columns, and a sum of 0 for each.
        buffer = cuda.shared.array((2, warps), dtype)
        values = cuda.local.array(elements, dtype)
        grads = cuda.local.array(elements, dtype)
        sums_weight = cuda.local.array(elements, dtype)
        sums_bias = cuda.local.array(elements, dtype)
        for k in range(elements):
            sums_weight[k] = cast(0, invvar)
            sums_bias[k] = cast(0, invvar)
        mine = Registers(values, grads, sums_weight, sums_bias)
        n1, n2 = saved.shape
        first = cuda.threadIdx.x * width
        row = cuda.blockIdx.x
        while row < n1:  # persistent: the sums of the columns stay in registers from row to row
            # Fetch: the saved row and dy go to registers, with all loads in flight at once.
            load_row(values, saved, row, first)
            load_row(grads, grad_output, row, first)
            scale = load(invvar, row)
            center = None if mean is None else load(mean, row)

            # First pass, over registers: the row's sums of g and g x̂, and each column's terms.
            sum_g, sum_gx = pass_1(mine, weight, bias, eps, center, scale, first, n2)

            # Exchange: the block adds up both sums; the barriers are in `block_sums`.
            sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer)
            mean_g = sum_g / cast(n2, invvar)
            mean_gx = corrected(sum_gx, row_sums, row) / cast(n2, invvar)  # the sum itself without the exact mode
            if first == 0:  # thread 0
                leave_means(row_sums, row, mean_g, mean_gx)  # writes nothing without the exact mode

            # Second pass, over registers: grad_input.
            pass_2(mine, grad_input, row, first, scale, mean_g, mean_gx)
            row += cuda.gridDim.x

        # Epilogue: each block writes its row of partial sums.
        write_sums(part_weight, sums_weight, first)
        write_sums(part_bias, sums_bias, first)

    return backward_fused


@cache
def first_pass(dtype, thread_map: ThreadMap, rms, memory_efficient):
    """Return the device function `pass_1(mine, weight, bias, eps, center, scale, first, n2) -> (sum of g, of g x̂)`.

    It leaves x̂ in mine.values and g in mine.grads for the second pass, and adds to the columns' sums. center: the row's
    mean. scale: its invvar. first: the thread's first column.
    """
    vectors, width, span, whole = thread_map.loop
    load_parameters = parameter_loader(width)

    @cuda.jit(device=True)
    def pass_1(mine, weight, bias, eps, center, scale, first, n2):
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        sum_g = cast(0, mine.values)
        sum_gx = cast(0, mine.values)
        for v in range(vectors):
            if whole or first + v * span < n2:
                load_parameters(gammas, betas, weight, bias, first + v * span)
                for k in range(width):
                    at = v * width + k
                    grad = mine.grads[at]
                    gamma = None if weight is None else gammas[k]
                    beta = None if bias is None else betas[k]
                    g = affine(grad, gamma, None)
                    if memory_efficient:
                        value = without_bias(mine.values[at], beta)  # gamma x̂, so that dy times it is g x̂
                        sum_gx += grad * value
                        if weight is not None:
                            # x̂ and the g of grad_input take the clamped gamma; mean(g) does not (`row_terms`)
                            clamped = clamp_by_magnitude(gammas[k], eps)
                            value = value / clamped
                            mine.grads[at] = grad * clamped
                    else:
                        value = normalised_from_input(mine.values[at], center, scale)
                        sum_gx += g * value
                        mine.grads[at] = g
                    if not rms:  # RMSNorm has no mean(g)
                        sum_g += g
                    mine.values[at] = value
                    if weight is not None:
                        mine.sums_weight[at] += grad * value
                    if bias is not None:
                        mine.sums_bias[at] += grad
        return sum_g, sum_gx

    return pass_1


@cache
def second_pass(thread_map: ThreadMap):
    """Return the device function `pass_2(mine, grad_input, row, first, scale, mean_g, mean_gx)`: store grad_input."""
    vectors, width, span, whole = thread_map.loop

    @cuda.jit(device=True)
    def pass_2(mine, grad_input, row, first, scale, mean_g, mean_gx):
        for v in range(vectors):
            if whole or first + v * span < grad_input.shape[1]:
                for k in range(width):
                    at = v * width + k
                    mine.grads[at] = (mine.grads[at] - mean_g - mine.values[at] * mean_gx) * scale
                store_vector_from(grad_input, (row, first + v * span), mine.grads, v * width, width)

    return pass_2


@cache
def sums_writer(thread_map: ThreadMap):
    """Return the device function `write_sums(part, sums, first)`, which writes a block's row of partial sums.

    part: (blocks, n2), or None where the gradient is not wanted.
    """
    vectors, width, span = thread_map.vectors, thread_map.width, thread_map.span

    @cuda.jit(device=True)
    def write_sums(part, sums, first):
        if part is not None:
            for v in range(vectors):
                for k in range(width):  # once per kernel, so element by element, of whatever alignment
                    column = first + v * span + k
                    if column < part.shape[1]:
                        store(part, (cuda.blockIdx.x, column), sums[v * width + k])

    return write_sums


def plan(problem: BackwardProblem, device: Device) -> Plan | Refusal:
    """Return the plan, if the registers of a block hold a row and its two sums."""
    if problem.in_float64:
        return FLOAT32_ALONE
    n1, n2 = problem.shape
    thread_map = thread_map_of(problem)
    if thread_map is None:
        return Refusal(f"{MAX_THREADS} threads with {MAX_ELEMENTS} elements each do not hold {n2:,} columns")
    blocks = blocks_for(thread_map, n1, device.multiprocessors)
    options = accumulator(problem.invvar), thread_map, problem.rms, problem.memory_efficient
    arguments = *OPERANDS, "row_sums", "grad_input", "part_weight", "part_bias"
    return Plan(
        "fused",
        (Work(build, options, blocks, thread_map.threads, arguments), *final_sums.sums_of(problem, blocks)),
        f"{RESIDENT_THREADS} threads stay on each multiprocessor, {VECTORS} vectors each or as many as it takes",
        row_chains_of(thread_map),
        column_chains_of(n1, blocks),
        scratch=final_sums.partial_sums_for(problem, blocks),
        values=final_sums.absent_partial_sums(problem),
    )


def column_chains_of(n1: int, blocks: int) -> Chains:
    """Return the chains over n1 rows, done by so many blocks."""
    # a thread's rows, then the final sums over the blocks, which end with two levels over a thread's four sums
    return Chains(-(-n1 // blocks) + final_sums.terms(blocks), 2)


def _thread_maps(n2: int) -> list[ThreadMap]:
    thread_maps = (thread_map_for(n2, width) for width in (1, 2, 4, 8) if n2 % width == 0)
    return [thread_map for thread_map in thread_maps if thread_map is not None]


def _row_chains(n2: int) -> Chains:
    own = [row_chains_of(thread_map) for thread_map in _thread_maps(n2)]
    return longest(*own, step_1_apex.STEP.row_chains(n2))


def _column_chains(n1: int, n2: int) -> Chains:
    own = [column_chains_of(n1, blocks_for(thread_map, n1, final_sums.PROCESSORS)) for thread_map in _thread_maps(n2)]
    return longest(*own, step_1_apex.STEP.column_chains(n1, n2))


STEP = BackwardStep(
    name="fused",
    summary="one persistent kernel, the columns' sums in registers",
    ways=(plan, step_1_apex.plan),
    row_chains=_row_chains,
    simulated_seconds=lambda n1, n2: simulated_by_vectors(n1, n2) + 100e-6 * n2,  # 16 blocks per 32 columns
    column_chains=_column_chains,
)
