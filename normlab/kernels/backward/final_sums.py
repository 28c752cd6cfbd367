"""Add up the partial sums of grad_weight and grad_bias: the last kernel of a backward whose blocks write partial sums.

The partial sums of a parameter are a matrix (rows, n2), one row per block that wrote some. The gradient is the sum of
its rows. The matrices are called `part_weight` and `part_bias`, after apex's part_grad_gamma and part_grad_beta. There
are two kernels:

- More than FEW_ROWS rows: grid (n2 / 32, parameters), block (32, 8), or of (8, 32) for more than MANY_ROWS. Thread
  (x, y) adds up rows y, y + 8, … of column x of the block's 32, with up to 16 loads in flight, into four sums. Then
  thread (x, 0) adds up the eight threads' sums of the column through shared memory.
- FEW_ROWS rows or fewer, as a backward of long rows leaves: a thread adds up a vector of neighbouring columns, up to 16
  bytes, over all rows one after another, with the loads of eight rows in flight. Eight threads per column took so many
  blocks that starting them took longer than adding.

Each order depends on the number of rows alone, so the bits are the same every time.
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
from normlab.kernels.plan import Scratch, View, Work
from normlab.kernels.problem import BackwardProblem
from normlab.stages.vector import BYTES, widest

ARGUMENTS = "part_weight", "part_bias", "grad_weight", "grad_bias"  # of the kernels, in order
MANY_ROWS = 256
OF_SOME = 8, 32  # threads per column and columns per block, up to MANY_ROWS
# Short rows leave many rows of partial sums and few blocks that add them up: 1,056 rows of 64 columns have two blocks,
# whose threads would wait for 33 loads one after another. The backward of 131,072 rows of 64 bfloat16 reaches 0.72 of a
# copy on an H200, with eight threads 0.64; of 264 rows of partial sums 4,096 columns wide, both are as fast.
OF_MANY = 32, 8  # smaller blocks find a place beside the backward's blocks, and wait there for the last one
SUMS = 4  # per thread, added up last
IN_FLIGHT = 16  # loads per thread
FEW_ROWS = 16  # up to so many rows the second kernel adds up
FEW_THREADS = 128  # per block of the second kernel
FEW_IN_FLIGHT = 8  # rows that a thread of the second kernel loads before it adds
# The error bounds of sums over rows assume a GPU of this size; on fewer multiprocessors each adds up more rows.
PROCESSORS = 132
CLUSTERED_PROCESSORS = 112  # of these, the multiprocessors that clusters of 16 blocks can use


@cache
def column_summer(dtype: Any, threads: int) -> Any:
    """Return the device function `column_sum(partials, column, y)`: one thread's share of a column of `partials`.

    It is the sum of rows y, y + threads, … of `partials`, (rows, n2).
    """
    stretch = IN_FLIGHT * threads  # rows

    @cuda.jit(device=True)
    def column_sum(partials, column, y):
        first = cast(0, partials)
        second = cast(0, partials)
        third = cast(0, partials)
        fourth = cast(0, partials)
        values = cuda.local.array(IN_FLIGHT, dtype)
        row = y
        while row + stretch - threads < partials.shape[0]:
            for ahead in range(IN_FLIGHT):  # all loads before the first addition waits
                values[ahead] = load(partials, (row + ahead * threads, column))
            for ahead in range(0, IN_FLIGHT, SUMS):
                first += values[ahead]
                second += values[ahead + 1]
                third += values[ahead + 2]
                fourth += values[ahead + 3]
            row += stretch
        while row + 3 * threads < partials.shape[0]:  # four sums: no addition waits for the one before
            first += load(partials, (row, column))
            second += load(partials, (row + threads, column))
            third += load(partials, (row + 2 * threads, column))
            fourth += load(partials, (row + 3 * threads, column))
            row += SUMS * threads
        while row < partials.shape[0]:  # up to three rows are left over
            first += load(partials, (row, column))
            row += threads
        return (first + second) + (third + fourth)

    return column_sum


@cache
def build(dtype: Any, threads: int, columns: int) -> Any:
    """Return the kernel for more than a few rows and an accumulator dtype. threads: per column. columns: per block."""
    column_sum = column_summer(dtype, threads)

    @cuda.jit
    def backward_final_sums(part_weight, part_bias, grad_weight, grad_bias):
        """Write the sum of part_weight's rows to grad_weight, and of part_bias's to grad_bias.

        part_…: (rows, n2), accumulator dtype; grad_…: (n2,); both arrays of a parameter may be None. Blocks with
        y = 0 take the weight and those with y = 1 the bias; if only one of them is given, every block takes it.
        """
        # First each thread's share of its column.
        sums = cuda.shared.array((threads, columns), dtype)
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        column = cuda.blockIdx.x * columns + x
        is_weight = part_weight is not None and (part_bias is None or cuda.blockIdx.y == 0)
        sums[y, x] = cast(0, sums)
        grid_dependency_sync()  # the kernel may start early: all partial sums are written before a thread loads one
        if part_weight is not None and is_weight and column < part_weight.shape[1]:
            sums[y, x] = column_sum(part_weight, column, y)
        if part_bias is not None and not is_weight and column < part_bias.shape[1]:
            sums[y, x] = column_sum(part_bias, column, y)

        # Then all threads' shares of each column.
        cuda.syncthreads()  # all sums of a column are in shared memory before one thread adds them up
        if y == 0:
            total = sums[0, x]
            for k in range(1, threads):
                total += sums[k, x]
            if grad_weight is not None and is_weight and column < grad_weight.shape[0]:
                store(grad_weight, column, total)
            if grad_bias is not None and not is_weight and column < grad_bias.shape[0]:
                store(grad_bias, column, total)

    return backward_final_sums


@cache
def few_columns_sums(dtype: Any, width: int) -> Any:
    """Return the device function `add_up(partials, gradient, column)`, with which one thread adds up whole columns.

    It writes the sums of columns `column` to `column + width - 1` of `partials`, (rows, n2), to `gradient`, (n2,).
    """
    values_in_flight = FEW_IN_FLIGHT * width

    @cuda.jit(device=True)
    def add_up(partials, gradient, column):
        values = cuda.local.array(values_in_flight, dtype)
        sums = cuda.local.array(width, dtype)
        for k in range(width):
            sums[k] = cast(0, sums)
        for row in range(0, partials.shape[0], FEW_IN_FLIGHT):
            # All loads first, then the additions in the order of the rows. Rows past the last count as 0.
            for ahead in range(FEW_IN_FLIGHT):
                for k in range(width):
                    values[ahead * width + k] = cast(0, sums)
                if row + ahead < partials.shape[0]:
                    load_vector_into(values, ahead * width, partials, (row + ahead, column), width)
            for ahead in range(FEW_IN_FLIGHT):
                for k in range(width):
                    sums[k] += values[ahead * width + k]
        store_vector_from(gradient, column, sums, 0, width)

    return add_up


@cache
def build_few(dtype: Any, width: int) -> Any:
    """Return the kernel for few rows. width: columns per thread."""
    add_up = few_columns_sums(dtype, width)

    @cuda.jit(launch_bounds=(FEW_THREADS, 1))
    def backward_few_final_sums(part_weight, part_bias, grad_weight, grad_bias):
        """Do what `backward_final_sums` does; n2 and all addresses are multiples of `width` elements."""
        column = (cuda.blockIdx.x * FEW_THREADS + cuda.threadIdx.x) * width
        is_weight = part_weight is not None and (part_bias is None or cuda.blockIdx.y == 0)
        grid_dependency_sync()  # all partial sums are written before a thread loads one
        if part_weight is not None and is_weight and column < part_weight.shape[1]:
            add_up(part_weight, grad_weight, column)
        if part_bias is not None and not is_weight and column < part_bias.shape[1]:
            add_up(part_bias, grad_bias, column)

    return backward_few_final_sums


def terms(rows: int) -> int:
    """Return the longest chain of additions over `rows` rows of partial sums, or over fewer rows.

    Fewer rows can have the longer chain: FEW_ROWS rows are one chain, more rows are shared by eight threads, and more
    than MANY_ROWS by 32.
    """
    if rows <= FEW_ROWS:
        return rows
    eight = min(rows, MANY_ROWS)
    (some, _), (many, _) = OF_SOME, OF_MANY
    chains = FEW_ROWS, -(-eight // some) + some  # a thread's rows, then the column's threads
    return max(*chains, 0 if rows <= MANY_ROWS else -(-rows // many) + many)


def partial_sums_for(problem: BackwardProblem, rows: int) -> tuple[Scratch, ...]:
    """Return the memory for the partial sums of weight and bias, (rows, n2) each, where a gradient is wanted."""
    _, n2 = problem.shape
    wanted = ("part_weight", problem.weight), ("part_bias", problem.bias)
    return tuple(Scratch(name, (rows, n2), problem.invvar.dtype) for name, given in wanted if given is not None)


def absent_partial_sums(problem: BackwardProblem) -> tuple[tuple[str, None], ...]:
    """Return None as the partial sums of each parameter that is absent, by the kernels' argument names."""
    wanted = ("part_weight", problem.weight), ("part_bias", problem.bias)
    return tuple((name, None) for name, given in wanted if given is None)


def sums_of(problem: BackwardProblem, rows: int) -> tuple[Work, ...]:
    """Return the kernel that adds up `rows` rows of partial sums; nothing if there is neither weight nor bias.

    With parameters per sample, a row has the partial sums of all samples one after another.
    """
    parameters = [parameter for parameter in (problem.weight, problem.bias) if parameter is not None]
    if not parameters:
        return ()
    n2 = problem.shape[1] * problem.samples
    arguments: tuple[str | View, ...] = ARGUMENTS
    if problem.sampled:
        shapes = (rows, n2), (rows, n2), (n2,), (n2,)
        arguments = tuple(map(View, ARGUMENTS, shapes))
    dtype = accumulator(problem.invvar)
    if rows <= FEW_ROWS:
        width = min(BYTES // problem.invvar.dtype.itemsize, widest(n2, *problem.gradients))  # scratch is aligned
        grid = -(-n2 // (width * FEW_THREADS)), len(parameters)
        return (Work(build_few, (dtype, width), grid, (FEW_THREADS, 1), arguments),)
    threads, columns = OF_SOME if rows <= MANY_ROWS else OF_MANY
    grid = -(-n2 // columns), len(parameters)
    return (Work(build, (dtype, threads, columns), grid, (columns, threads), arguments),)
