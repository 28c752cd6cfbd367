"""Cut rows that neither a block nor a cluster holds into pieces (`kernels.split`), and read them twice.

    sums        one block per piece of a row: the piece's terms of the row's two sums
    means       one block per row: adds up the sums of its pieces
    gradients   one thread per few columns, row after row: grad_input and the columns' sums

Idea: pieces keep all multiprocessors busy with a few rows of millions of columns; one block per row would not. With
many rows several blocks share the same columns, and `final_sums` adds up their columns' sums.
Moves: dy and the saved array twice, grad_input once: 5 arrays where 3 would do.
Bound by: memory.
Measured: on an H200 32 rows of 802,816 columns took 0.54 of a copy in float32 and 0.41 in bfloat16, 8 rows of 3,211,264
took 0.54 and 0.46. Reading twice allows 0.60.
"""

from functools import cache
from typing import Any

import numpy as np

from normlab.engine import accumulator, cast, cuda, load, load_vector_into, store, store_vector_from
from normlab.kernels.backward import final_sums
from normlab.kernels.backward.operands import ARRAYS, OPERANDS
from normlab.kernels.plan import FLOAT32_ALONE, GRID_LIMIT_Y, Chains, Device, Plan, Refusal, Scratch, Work, longest
from normlab.kernels.problem import BackwardProblem
from normlab.kernels.split import (
    AT_ONCE,
    COLUMN_THREADS,
    ROW_THREADS,
    ROW_WARPS,
    THREADS,
    VECTORS,
    WARPS,
    Pieces,
    groups_for,
    pieces_for,
    row_chains_of,
    widths_of,
)
from normlab.stages.block import block_sums
from normlab.stages.gradient import corrected, leave_means
from normlab.stages.output import parameter_loader
from normlab.stages.recompute import affine, clamp_by_magnitude, normalised_from_input, without_bias
from normlab.stages.vector import widest
from normlab.stages.warp import warp_sum_butterfly


@cache
def build_sums(dtype: Any, width: int, rms: bool, memory_efficient: bool) -> Any:
    """Return the kernel `backward_split_sums`. Grid (pieces, rows), block THREADS."""
    span, elements = THREADS * width, VECTORS * width
    load_parameters = parameter_loader(width)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def backward_split_sums(grad_output, saved, mean, invvar, weight, bias, sums):
        """Write each piece's sums of g and of g x̂ to sums, (2 n1, pieces): first n1 rows of g, then n1 of g x̂."""
        buffer = cuda.shared.array((2, WARPS), dtype)
        values = cuda.local.array(elements, dtype)
        grads = cuda.local.array(elements, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        n1, n2 = saved.shape
        # The same columns of each row, so that a row's bits do not depend on the rows beside it.
        first = cuda.blockIdx.x * VECTORS * span + cuda.threadIdx.x * width
        row = cuda.blockIdx.y
        while row < n1:
            # Fetch: all loads of the piece are in flight before the first value is used.
            for v in range(VECTORS):
                if first + v * span < n2:
                    load_vector_into(values, v * width, saved, (row, first + v * span), width)
                    load_vector_into(grads, v * width, grad_output, (row, first + v * span), width)
            scale = load(invvar, row)
            center = None if mean is None else load(mean, row)
            sum_g = cast(0, invvar)
            sum_gx = cast(0, invvar)
            # This thread's terms of both sums. x̂ is made again in the third kernel: storing it would cost a write.
            for v in range(VECTORS):
                if first + v * span < n2:
                    load_parameters(gammas, betas, weight, bias, first + v * span)
                    for k in range(width):
                        grad = grads[v * width + k]
                        g = affine(grad, None if weight is None else gammas[k], None)
                        if memory_efficient:  # g x̂ = dy (y - beta): gamma cancels
                            sum_gx += grad * without_bias(values[v * width + k], None if bias is None else betas[k])
                        else:
                            sum_gx += g * normalised_from_input(values[v * width + k], center, scale)
                        if not rms:
                            sum_g += g
            # Exchange within the block; the next kernel adds up the pieces. The barriers are in `block_sums`.
            sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer)
            if cuda.threadIdx.x == 0:
                store(sums, (row, cuda.blockIdx.x), sum_g)
                store(sums, (n1 + row, cuda.blockIdx.x), sum_gx)
            row += cuda.gridDim.y  # a grid has at most 65,535 blocks in y

    return backward_split_sums


@cache
def build_means(dtype: Any) -> Any:
    """Return the kernel `backward_split_means`. Grid rows, block ROW_THREADS."""

    @cuda.jit(launch_bounds=(ROW_THREADS, 1))
    def backward_split_means(sums, factor, row_sums, means):
        """Add up each row's pieces; write mean(g) and mean(g x̂) to means, (2, n1). sums: as above. factor: 1 / n2."""
        buffer = cuda.shared.array((2, ROW_WARPS), dtype)
        row = cuda.blockIdx.x
        sum_g = cast(0, sums)
        sum_gx = cast(0, sums)
        # Neighbouring threads read neighbouring pieces; which thread adds which piece is fixed, and so are the bits.
        piece = cuda.threadIdx.x
        while piece < sums.shape[1]:
            sum_g += load(sums, (row, piece))
            sum_gx += load(sums, (means.shape[1] + row, piece))
            piece += ROW_THREADS
        sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer)
        if cuda.threadIdx.x == 0:
            mean_g = sum_g * factor
            # In the exact mode the columns at risk are added here, before the sum is divided.
            mean_gx = corrected(sum_gx, row_sums, row) * factor
            leave_means(row_sums, row, mean_g, mean_gx)
            store(means, (0, row), mean_g)
            store(means, (1, row), mean_gx)

    return backward_split_means


@cache
def build_gradients(dtype: Any, width: int, memory_efficient: bool, final: bool) -> Any:
    """Return the kernel `backward_split_gradients`.

    Grid (columns / (COLUMN_THREADS width), groups of rows), block COLUMN_THREADS. final: there is one group.
    """
    elements, load_parameters = AT_ONCE * width, parameter_loader(width)

    @cuda.jit(launch_bounds=(COLUMN_THREADS, 1))
    def backward_split_gradients(
        grad_output, saved, mean, invvar, weight, bias, eps, means, grad_input, part_weight, part_bias
    ):
        """Write grad_input and the groups' sums of the columns.

        part_weight, part_bias: (groups, n2), accumulator dtype; if final, the gradient itself, (n2,); or None.
        """
        values = cuda.local.array(elements, dtype)
        grads = cuda.local.array(elements, dtype)
        sums_weight = cuda.local.array(width, dtype)
        sums_bias = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        n1, n2 = saved.shape
        column = (cuda.blockIdx.x * COLUMN_THREADS + cuda.threadIdx.x) * width
        if column < n2:
            # Prologue: parameters stay in registers for all rows.
            load_parameters(gammas, betas, weight, bias, column)
            for k in range(width):
                sums_weight[k] = cast(0, invvar)
                sums_bias[k] = cast(0, invvar)
                if memory_efficient and weight is not None:  # once per thread, not once per row
                    gammas[k] = clamp_by_magnitude(gammas[k], eps)
            # A group's rows lie `stride` apart, so that at a time the groups read rows side by side.
            top = cuda.blockIdx.y
            stride = cuda.gridDim.y
            while top < n1:
                # Fetch AT_ONCE rows: their loads are in flight together.
                for ahead in range(AT_ONCE):
                    row = top + ahead * stride
                    if row < n1:
                        load_vector_into(values, ahead * width, saved, (row, column), width)
                        load_vector_into(grads, ahead * width, grad_output, (row, column), width)
                # grad_input of these rows, and their terms of the columns' sums.
                for ahead in range(AT_ONCE):
                    row = top + ahead * stride
                    if row < n1:
                        scale = load(invvar, row)
                        center = None if mean is None else load(mean, row)
                        mean_g = load(means, (0, row))  # the same address in all threads: one transaction
                        mean_gx = load(means, (1, row))
                        for k in range(width):
                            grad = grads[ahead * width + k]
                            gamma = None if weight is None else gammas[k]
                            if memory_efficient:
                                xhat = without_bias(values[ahead * width + k], None if bias is None else betas[k])
                                if weight is not None:
                                    xhat = xhat / gammas[k]
                            else:
                                xhat = normalised_from_input(values[ahead * width + k], center, scale)
                            if part_weight is not None:
                                sums_weight[k] += grad * xhat
                            if part_bias is not None:
                                sums_bias[k] += grad
                            grads[ahead * width + k] = (affine(grad, gamma, None) - mean_g - xhat * mean_gx) * scale
                        store_vector_from(grad_input, (row, column), grads, ahead * width, width)
                top += AT_ONCE * stride  # groups of rows share the columns, so that few columns fill the GPU
            # Epilogue: this group's sums of its columns.
            # of a single group the sums are the gradient, and no further kernel is needed
            mine = column if final else (cuda.blockIdx.y, column)
            if part_weight is not None:
                store_vector_from(part_weight, mine, sums_weight, 0, width)
            if part_bias is not None:
                store_vector_from(part_bias, mine, sums_bias, 0, width)

    return backward_split_gradients


def plan(problem: BackwardProblem, device: Device) -> Plan | Refusal:
    """Return the plan."""
    if problem.in_float64:
        return FLOAT32_ALONE
    n1, n2 = problem.shape
    width = widest(n2, *problem.matrices, problem.weight, problem.bias, *problem.gradients)
    dtype, kept = accumulator(problem.invvar), problem.invvar.dtype
    # Pieces come from n2 alone, so a row's bits are the same in every batch. Groups divide the sums over rows alone.
    pieces, groups = pieces_for(n2, width), groups_for(n1, n2, width, device.multiprocessors)
    results = ("grad_weight", "grad_bias") if groups == 1 else ("part_weight", "part_bias")
    grid = -(-n2 // (COLUMN_THREADS * width)), groups
    return Plan(
        "split_rows",
        (
            Work(
                build_sums,
                (dtype, width, problem.rms, problem.memory_efficient),
                (pieces, min(n1, GRID_LIMIT_Y)),
                THREADS,
                (*ARRAYS, "sums"),
            ),
            Work(build_means, (dtype,), n1, ROW_THREADS, ("sums", "factor", "row_sums", "means")),
            Work(
                build_gradients,
                (dtype, width, problem.memory_efficient, groups == 1),
                grid,
                COLUMN_THREADS,
                (*OPERANDS, "means", "grad_input", *results),
            ),
            *(final_sums.sums_of(problem, groups) if groups > 1 else ()),
        ),
        "0.54 of a copy for 32 rows of 802,816 float32, where reading twice allows 0.60",
        row_chains_of(pieces, width),
        column_chains_of(n1, groups),
        reads=2,
        scratch=(
            Scratch("sums", (2 * n1, pieces), kept),
            Scratch("means", (2, n1), kept),
            *(final_sums.partial_sums_for(problem, groups) if groups > 1 else ()),
        ),
        values=(("factor", np.float32(1 / n2)), *final_sums.absent_partial_sums(problem)),
        layout=Pieces(pieces, width, groups),
    )


def column_chains_of(n1: int, groups: int) -> Chains:
    """Return the chains over n1 rows, done by so many groups."""
    return Chains(-(-n1 // groups) + final_sums.terms(groups), 2)


def column_chains(n1: int, n2: int) -> Chains:
    """Return the longest chains over rows, of all vectors."""
    return longest(*(column_chains_of(n1, groups_for(n1, n2, width, final_sums.PROCESSORS)) for width in widths_of(n2)))
