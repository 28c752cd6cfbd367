"""The last step of every backward that keeps partial sums: each block of it adds up some columns of them.

Grid: (columns / 32, parameters), block (32, 8). Thread (x, y) adds rows y, y + 8, … of its column in four sums of its
own, so that four loads are in flight; then the eight sums of a column meet in shared memory. The order depends on the
number of rows alone: the same bits every time.
"""

from functools import cache
from typing import Any

from normlab.engine import DeviceArray, cast, cuda, load, store
from normlab.kernels.step import BackwardProblem

COLUMNS = 32
THREADS_A_COLUMN = 8
IN_FLIGHT = 4
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


def terms(rows: int) -> int:
    """The longest chain of additions over so many rows of partial sums: of one thread, and of the last one."""
    return -(-rows // THREADS_A_COLUMN) + THREADS_A_COLUMN


def parts_for(memory: Any, problem: BackwardProblem, rows: int) -> tuple[Any, Any]:
    """Memory for the partial sums of weight and bias, (rows, n2) each, or None where no gradient is wanted."""
    n2 = problem.saved.shape[1]
    part_weight = None if problem.weight is None else memory.empty((rows, n2), problem.invvar.dtype)
    part_bias = None if problem.bias is None else memory.empty((rows, n2), problem.invvar.dtype)
    return part_weight, part_bias


def like_parts(problem: BackwardProblem) -> tuple[Any, Any]:
    """Arrays of the same kinds as those of `parts_for`, without new memory: to ask about a launch."""
    row = problem.invvar
    row = row._replace(shape=(1, *row.shape)) if isinstance(row, DeviceArray) else row[None]
    return (None if problem.weight is None else row), (None if problem.bias is None else row)


def launch_sums(launch: Any, dtype: Any, parts: tuple[Any, Any], problem: BackwardProblem) -> None:
    """Queue the kernel, if there are partial sums."""
    given = sum(part is not None for part in parts)
    if given:
        grid, block = (-(-problem.saved.shape[1] // COLUMNS), given), (COLUMNS, THREADS_A_COLUMN)
        launch(build(dtype), grid, block, *parts, problem.grad_weight, problem.grad_bias)
