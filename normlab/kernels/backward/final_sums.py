"""The last step of every backward that keeps partial sums: each block of it adds up some columns of them.

Many rows of partial sums: grid (columns / 32, parameters), block (32, 8). Thread (x, y) adds rows y, y + 8, … of its
column in four sums of its own, so that four loads are in flight; then the eight sums of a column meet in shared memory.
Few rows, which long ones leave: a thread adds up all of four columns, row after row, with eight rows' 16 bytes in
flight. Shared among eight threads, columns took so many blocks that starting them took longer than adding.
The order depends on the number of rows alone: the same bits every time.
"""

from functools import cache
from typing import Any

from normlab.engine import (
    accumulator,
    cast,
    cuda,
    grid_dependency_sync,
    load,
    load_vector_into,
    store,
    store_vector_from,
)
from normlab.kernels.plan import Scratch, Work
from normlab.kernels.problem import BackwardProblem
from normlab.stages.vector import BYTES, widest

ARGUMENTS = "part_weight", "part_bias", "grad_weight", "grad_bias"  # of the kernels, in order
COLUMNS = 32
THREADS_A_COLUMN = 8
IN_FLIGHT = 4
FEW_ROWS = 16  # or fewer
FEW_THREADS = 128  # a block, then
FEW_IN_FLIGHT = 8
# What the bounds of sums over rows assume: fewer multiprocessors have more rows each.
PROCESSORS = 132
CLUSTERED_PROCESSORS = 112  # of them, those that clusters of 16 blocks find room on


@cuda.jit(device=True)
def column_sum(parts, column, y):
    """This thread's share of a column of `parts`, (rows, n2)."""
    first = cast(0, parts)
    second = cast(0, parts)
    third = cast(0, parts)
    fourth = cast(0, parts)
    row = y
    while row + 3 * THREADS_A_COLUMN < parts.shape[0]:
        first += load(parts, (row, column))
        second += load(parts, (row + THREADS_A_COLUMN, column))
        third += load(parts, (row + 2 * THREADS_A_COLUMN, column))
        fourth += load(parts, (row + 3 * THREADS_A_COLUMN, column))
        row += IN_FLIGHT * THREADS_A_COLUMN
    while row < parts.shape[0]:
        first += load(parts, (row, column))
        row += THREADS_A_COLUMN
    return (first + second) + (third + fourth)


@cache
def build(dtype: Any) -> Any:
    """The kernel for an accumulator dtype."""

    @cuda.jit
    def backward_final_sums(part_weight, part_bias, grad_weight, grad_bias):
        """part_…: (rows, n2), accumulator dtype; grad_…: (n2,); a parameter's both may be None."""
        sums = cuda.shared.array((THREADS_A_COLUMN, COLUMNS), dtype)
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        column = cuda.blockIdx.x * COLUMNS + x
        is_weight = part_weight is not None and (part_bias is None or cuda.blockIdx.y == 0)
        sums[y, x] = cast(0, sums)
        grid_dependency_sync()  # it begins before the partial sums are there
        if part_weight is not None and is_weight and column < part_weight.shape[1]:
            sums[y, x] = column_sum(part_weight, column, y)
        if part_bias is not None and not is_weight and column < part_bias.shape[1]:
            sums[y, x] = column_sum(part_bias, column, y)
        cuda.syncthreads()  # all sums of a column are in shared memory before one thread adds them up
        if y == 0:
            total = sums[0, x]
            for k in range(1, THREADS_A_COLUMN):
                total += sums[k, x]
            if grad_weight is not None and is_weight and column < grad_weight.shape[0]:
                store(grad_weight, column, total)
            if grad_bias is not None and not is_weight and column < grad_bias.shape[0]:
                store(grad_bias, column, total)

    return backward_final_sums


@cache
def few_columns_sums(dtype: Any, width: int) -> Any:
    """The device function `add_up(parts, gradient, column)`: `width` columns of `parts`, (rows, n2), into gradient."""
    values_in_flight = FEW_IN_FLIGHT * width

    @cuda.jit(device=True)
    def add_up(parts, gradient, column):
        values = cuda.local.array(values_in_flight, dtype)
        sums = cuda.local.array(width, dtype)
        for k in range(width):
            sums[k] = cast(0, sums)
        for row in range(0, parts.shape[0], FEW_IN_FLIGHT):
            for ahead in range(FEW_IN_FLIGHT):
                for k in range(width):
                    values[ahead * width + k] = cast(0, sums)
                if row + ahead < parts.shape[0]:
                    load_vector_into(values, ahead * width, parts, (row + ahead, column), width)
            for ahead in range(FEW_IN_FLIGHT):
                for k in range(width):
                    sums[k] += values[ahead * width + k]
        store_vector_from(gradient, column, sums, 0, width)

    return add_up


@cache
def build_few(dtype: Any, width: int) -> Any:
    """The kernel for few rows, and for an accumulator dtype and columns a thread."""
    add_up = few_columns_sums(dtype, width)

    @cuda.jit(launch_bounds=(FEW_THREADS, 1))
    def backward_few_final_sums(part_weight, part_bias, grad_weight, grad_bias):
        """As `backward_final_sums`; n2 is a multiple of `width`, and all addresses are aligned to as many elements."""
        column = (cuda.blockIdx.x * FEW_THREADS + cuda.threadIdx.x) * width
        is_weight = part_weight is not None and (part_bias is None or cuda.blockIdx.y == 0)
        grid_dependency_sync()
        if part_weight is not None and is_weight and column < part_weight.shape[1]:
            add_up(part_weight, grad_weight, column)
        if part_bias is not None and not is_weight and column < part_bias.shape[1]:
            add_up(part_bias, grad_bias, column)

    return backward_few_final_sums


def terms(rows: int) -> int:
    """The longest chain of additions over so many rows of partial sums, or over fewer."""
    shared = -(-rows // THREADS_A_COLUMN) + THREADS_A_COLUMN  # of one thread, and of the last one
    return rows if rows <= FEW_ROWS else max(FEW_ROWS, shared)


def parts_for(problem: BackwardProblem, rows: int) -> tuple[Scratch, ...]:
    """Return the memory for the partial sums of weight and bias, (rows, n2) each, where a gradient is wanted."""
    _, n2 = problem.shape
    wanted = ("part_weight", problem.weight), ("part_bias", problem.bias)
    return tuple(Scratch(name, (rows, n2), problem.invvar.dtype) for name, given in wanted if given is not None)


def absent_parts(problem: BackwardProblem) -> tuple[tuple[str, None], ...]:
    """Return the values of partial sums that there are none of."""
    wanted = ("part_weight", problem.weight), ("part_bias", problem.bias)
    return tuple((name, None) for name, given in wanted if given is None)


def sums_of(problem: BackwardProblem, rows: int) -> tuple[Work, ...]:
    """Return the kernel that adds up so many rows of partial sums, if there are any."""
    parameters = [parameter for parameter in (problem.weight, problem.bias) if parameter is not None]
    if not parameters:
        return ()
    _, n2 = problem.shape
    dtype = accumulator(problem.invvar)
    if rows <= FEW_ROWS:
        width = min(BYTES // problem.invvar.dtype.itemsize, widest(n2, *problem.gradients))  # new memory is aligned
        grid = -(-n2 // (width * FEW_THREADS)), len(parameters)
        return (Work(build_few, (dtype, width), grid, (FEW_THREADS, 1), ARGUMENTS),)
    grid = -(-n2 // COLUMNS), len(parameters)
    return (Work(build, (dtype,), grid, (COLUMNS, THREADS_A_COLUMN), ARGUMENTS),)
