"""Compute the backward with apex's three kernels: two for the column sums, and one for grad_input with a block per row.

Idea: column sums without atomics. 16 blocks (PARTS) share every 32 columns. Each of these blocks adds up its part of
the rows in a padded tile in shared memory (`stages.strided`) and writes one row of partial sums. The second kernel adds
up the 16 rows. The number 16 is fixed, so the order of the additions and the bits of the result are fixed, too.
Moves: dy and the saved array twice for grad_input and once more for the column sums, grad_input once: 7 arrays where 3
would do.
Bound by: those readings, and few loads in flight.
Measured: 0.33 / 0.43 of a copy in bfloat16 / float32; recomputing 0.20 / 0.36; apex itself 0.30 / 0.45 and 0.27 / 0.40.
Next: one persistent kernel that does both jobs on one reading.

apex: cuComputePartGradGammaBeta, cuComputeGradGammaBeta, cuComputeGradInput.
"""

from functools import cache

import numpy as np

from normlab.engine import accumulator, cast, cuda, load, store
from normlab.kernels.backward import final_sums
from normlab.kernels.backward.operands import OPERANDS
from normlab.kernels.plan import GRID_LIMIT_Y, Chains, Device, Plan, Work
from normlab.kernels.problem import BackwardProblem
from normlab.kernels.step import BackwardStep, simulated_by_vectors
from normlab.stages.block import block_sums
from normlab.stages.gradient import corrected, input_gradient, leave_means, row_terms
from normlab.stages.strided import COLUMNS, ROWS, TILE_STRIDE, WARPS, load_add_strided, load_write_strided
from normlab.stages.warp import thread_index, warp_sum_butterfly

PARTS = 16  # blocks per 32 columns in the first kernel, and rows of partial sums
FINAL_WARPS = 8  # per block of the second kernel
HALF_FINAL_WARPS = FINAL_WARPS // 2
STEP_COLUMNS = 4  # neighbouring elements that a thread of the third kernel takes at a time
THREADS = 32 * WARPS  # per block of the first and of the third kernel


def _rows_per_part(n1: int) -> int:
    """Return the number of rows that each of the PARTS blocks adds up: whole tiles."""
    tiles = -(-n1 // ROWS)
    return -(-tiles // PARTS) * ROWS


@cache
def build_partial_sums(dtype, memory_efficient):
    """Return the kernel that writes PARTS rows of partial sums (apex: cuComputePartGradGammaBeta).

    Grid (n2 / 32, PARTS), block (32, 4): block (c, p) has 32 columns and part p of the rows.
    """

    @cuda.jit
    def backward_apex_partial_sums(
        grad_output, saved, mean, invvar, weight, bias, eps, rows_per_part, part_weight, part_bias
    ):
        # Fold the part's rows into one tile of 16 x 32. Each thread adds four elements of a row to its own four sums.
        tile_bias = cuda.shared.array((ROWS, TILE_STRIDE), dtype)
        tile_weight = cuda.shared.array((ROWS, TILE_STRIDE), dtype)
        first_row = cuda.blockIdx.y * rows_per_part
        row_end = min(first_row + rows_per_part, saved.shape[0])
        load_write_strided(
            first_row, row_end, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient,
            tile_bias, tile_weight,
        )  # fmt: skip
        row = first_row + ROWS
        while row < row_end:
            load_add_strided(
                row, row_end, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient,
                tile_bias, tile_weight,
            )  # fmt: skip
            row += ROWS
        cuda.syncthreads()  # the whole tile is in shared memory before its columns are summed

        # Add up the tile's columns: thread (x, y) takes rows y, y + 4, … of column x, then a tree over y.
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        sum_bias = cast(0, tile_bias)
        sum_weight = cast(0, tile_weight)
        for k in range(ROWS // WARPS):
            sum_bias += tile_bias[y + k * WARPS, x]
            sum_weight += tile_weight[y + k * WARPS, x]
        tile_bias[y, x] = sum_bias  # no barrier before: in the loop above only this thread reads row y of column x
        tile_weight[y, x] = sum_weight
        half = WARPS // 2
        while half > 0:
            cuda.syncthreads()  # the previous round's sums are in shared memory before they are read
            if y < half:
                tile_bias[y, x] += tile_bias[y + half, x]
                tile_weight[y, x] += tile_weight[y + half, x]
            half //= 2

        # Row p of the partial sums, by the first warp.
        column = cuda.blockIdx.x * COLUMNS + x
        if y == 0 and column < saved.shape[1]:
            if part_weight is not None:
                store(part_weight, (cuda.blockIdx.y, column), tile_weight[0, x])
            if part_bias is not None:
                store(part_bias, (cuda.blockIdx.y, column), tile_bias[0, x])

    return backward_apex_partial_sums


@cache
def build_final_sums(dtype):
    """Return the kernel that adds up the partial sums of one parameter (apex: cuComputeGradGammaBeta).

    Grid n2 / 32, block (32, 8): thread (x, y) adds up two of the 16 rows in column x, then a tree over y.
    """

    @cuda.jit
    def backward_apex_final_sums(parts, gradient):
        buffer = cuda.shared.array((HALF_FINAL_WARPS, COLUMNS), dtype)
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        column = cuda.blockIdx.x * COLUMNS + x
        total = cast(0, buffer)
        if column < gradient.shape[0]:
            for k in range(PARTS // FINAL_WARPS):
                total += load(parts, (y * (PARTS // FINAL_WARPS) + k, column))
        # In apex the barriers below stand under a condition that some threads of the last block do not meet. Here all
        # threads reach them.
        half = HALF_FINAL_WARPS
        while half > 0:
            if half <= y < 2 * half:
                buffer[y - half, x] = total
            cuda.syncthreads()  # the upper half's sums are in shared memory before the lower half reads them
            if y < half:
                total += buffer[y, x]
            cuda.syncthreads()  # the lower half has read them before the next round overwrites them
            half //= 2
        if y == 0 and column < gradient.shape[0]:
            store(gradient, column, total)

    return backward_apex_final_sums


@cache
def build_grad_input(dtype, rms, memory_efficient):
    """Return the kernel that writes grad_input (apex: cuComputeGradInput). Grid (1, rows), block (32, 4)."""

    @cuda.jit
    def backward_apex_grad_input(grad_output, saved, mean, invvar, weight, bias, eps, row_sums, grad_input):
        buffer = cuda.shared.array((2, WARPS), dtype)
        thread = thread_index()
        n2 = saved.shape[1]
        row = cuda.blockIdx.y
        while row < saved.shape[0]:
            # First pass: the row's sums of g and g x̂. A thread takes four neighbouring columns at a time.
            sum_g = cast(0, invvar)
            sum_gx = cast(0, invvar)
            start = STEP_COLUMNS * thread
            while start < n2:
                for column in range(start, start + STEP_COLUMNS):
                    if column < n2:
                        g, gx = row_terms(grad_output, saved, row, column, mean, invvar, weight, bias, memory_efficient)
                        sum_gx += gx
                        if not rms:
                            sum_g += g
                start += STEP_COLUMNS * THREADS
            sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer)
            mean_g = sum_g / cast(n2, invvar)
            mean_gx = corrected(sum_gx, row_sums, row) / cast(n2, invvar)
            if thread == 0:  # every thread has the same means: one stores them
                leave_means(row_sums, row, mean_g, mean_gx)

            # Second pass: read dy and the saved row again and store grad_input. A thread takes every 128th column.
            column = thread
            while column < n2:
                gradient = input_gradient(
                    grad_output, saved, row, column, mean, invvar, weight, bias, eps, memory_efficient, mean_g, mean_gx
                )
                store(grad_input, (row, column), gradient)
                column += THREADS
            row += cuda.gridDim.y  # more rows than a grid has blocks in y

    return backward_apex_grad_input


def plan(problem: BackwardProblem, device: Device) -> Plan:
    """Return the plan, which does every problem."""
    n1, n2 = problem.shape
    dtype, blocks = accumulator(problem.invvar), -(-n2 // COLUMNS)
    wanted = ("weight", problem.weight), ("bias", problem.bias)
    given = [name for name, parameter in wanted if parameter is not None]
    work = []
    if given:
        sums = *OPERANDS, "rows_per_part", "part_weight", "part_bias"
        work.append(Work(build_partial_sums, (dtype, problem.memory_efficient), (blocks, PARTS), (32, WARPS), sums))
        work += [
            Work(build_final_sums, (dtype,), blocks, (32, FINAL_WARPS), (f"part_{name}", f"grad_{name}"))
            for name in given
        ]
    options = dtype, problem.rms, problem.memory_efficient
    arguments = *OPERANDS, "row_sums", "grad_input"
    # as in apex, the rows are on gridDim.y
    work.append(Work(build_grad_input, options, (1, min(n1, GRID_LIMIT_Y)), (32, WARPS), arguments))
    return Plan(
        "apex",
        tuple(work),
        "apex's 16 blocks on every 32 columns, and a block of 32 x 4 threads per row; rows of every length and dtype",
        row_chains_of(n2),
        column_chains_of(n1, n2),
        reads=3 if given else 2,
        scratch=final_sums.partial_sums_for(problem, PARTS),
        values=(("rows_per_part", np.int64(_rows_per_part(n1))), *final_sums.absent_partial_sums(problem)),
    )


def row_chains_of(n2: int) -> Chains:
    """Return the chains along a row."""
    return Chains(terms=STEP_COLUMNS * -(-n2 // (STEP_COLUMNS * THREADS)), merges=7)


def column_chains_of(n1: int, n2: int) -> Chains:
    """Return the chains over rows."""
    return Chains(terms=_rows_per_part(n1) // ROWS + ROWS // WARPS + PARTS // FINAL_WARPS, merges=5)


STEP = BackwardStep(
    name="apex",
    summary="padded tiles, 16 partial sums, final kernel; grad_input by one block per row",
    ways=(plan,),
    row_chains=row_chains_of,
    # 100 us more per column: 16 blocks of 128 threads have 32 columns, however few the rows
    simulated_seconds=lambda n1, n2: simulated_by_vectors(n1, n2) + 100e-6 * n2,
    column_chains=column_chains_of,
)
