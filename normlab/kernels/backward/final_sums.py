"""Add up the partial sums of grad_weight and grad_bias: the last kernel of a backward whose blocks write partial sums.

The partial sums of a parameter are a matrix (rows, n2), one row per block that wrote some. The gradient is the sum of
its rows. The matrices are called `part_weight` and `part_bias`, after apex's part_grad_gamma and part_grad_beta. There
are two kernels:

- More than FEW_ROWS rows: a thread adds up every 32nd to 128th row of a vector of neighbouring columns, up to 16 bytes,
  with eight loads in flight. Then the threads of a warp that have the same columns add up by shuffles, and the block's
  eight warps through shared memory.
- FEW_ROWS rows or fewer, as a backward of long rows leaves: a thread adds up a vector of neighbouring columns, up to 16
  bytes, over all rows one after another, with the loads of eight rows in flight. Eight threads per column took so many
  blocks that starting them took longer than adding.

Each order depends on the shape of the matrix alone, so the bits are the same every time.

A backward that recomputes x̂ leaves its sums for grad_weight undivided: these kernels divide them by the clamped gamma,
once per column. Each block of the first kernel divided its own: RMSNorm of 55 x 44,005 float16 took 5 us longer.
"""

from functools import cache
from math import gcd
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
from normlab.stages.recompute import clamp_by_magnitude
from normlab.stages.vector import BYTES, WARP, widest
from normlab.stages.warp import ALL_LANES, lane_index, warp_index

ARGUMENTS = "part_weight", "part_bias", "grad_weight", "grad_bias"  # of the kernels, in order; then DIVISOR
DIVISOR = "weight", "eps"
THREADS = 256  # per block of the first kernel
# Many loads at once, but little code: the kernel's instructions, too, come from DRAM. Against four sums of single loads
# on an H100: RMSNorm of 16,384 x 1,024 bfloat16 44.8 us instead of 45.7, gated of 32,768 x 512 66.4 instead of 67.1.
IN_FLIGHT = 8  # vectors per thread
LEAST_COLUMNS, MOST_LANES = 8, 8  # columns per block at least, threads beside each other in a row at most
BLOCKS = 64  # per parameter, where that leaves a block more columns than the least
FEW_ROWS = 24  # up to so many rows the second kernel adds up
FEW_THREADS = 128  # per block of the second kernel
FEW_IN_FLIGHT = 8  # rows that a thread of the second kernel loads before it adds
# The error bounds of sums over rows assume a GPU of this size; on fewer multiprocessors each adds up more rows.
PROCESSORS = 132
CLUSTERED_PROCESSORS = 112  # of these, the multiprocessors that clusters of 16 blocks can use


@cache
def rows_adder(dtype: Any, width: int, groups: int) -> Any:
    """Return the device function `add_rows(partials, column, group, totals)`: one thread's share of a vector's columns.

    It adds rows group, group + groups, … of `partials`, (rows, n2), to `totals`. width: columns per vector.
    """
    values_in_flight = IN_FLIGHT * width

    @cuda.jit(device=True)
    def add_rows(partials, column, group, totals):
        values = cuda.local.array(values_in_flight, dtype)
        row = group
        while row < partials.shape[0]:
            # All loads first, then the additions in the order of the rows. Rows past the last count as 0.
            for ahead in range(IN_FLIGHT):
                for k in range(width):
                    values[ahead * width + k] = cast(0, totals)
                if row + ahead * groups < partials.shape[0]:
                    load_vector_into(values, ahead * width, partials, (row + ahead * groups, column), width)
            for ahead in range(IN_FLIGHT):
                for k in range(width):
                    totals[k] += values[ahead * width + k]
            row += IN_FLIGHT * groups

    return add_rows


@cache
def divisor_loader(offset: float | None) -> Any:
    """Return the device function `load_divisor(weight, eps, column, like)`: the clamped gamma, weight + offset.

    It is 1, of `like`'s dtype, past the last column. offset: None in a kernel that divides nothing, and asks for none.
    """

    @cuda.jit(device=True)
    def load_divisor(weight, eps, column, like):
        divisor = cast(1, like)
        if column < weight.shape[0]:
            divisor = load(weight, column)
            if offset:
                divisor += cast(offset, like)
            divisor = clamp_by_magnitude(divisor, eps)
        return divisor

    return load_divisor


@cache
def build(dtype: Any, width: int, columns: int, offset: float | None) -> Any:
    """Return the kernel for more than a few rows, and an accumulator dtype.

    width: columns per thread. columns: per block, at most a warp's. offset: as in `divisor_loader`.
    """
    lanes = columns // width  # threads of a warp with different columns; the others have other rows
    add_rows = rows_adder(dtype, width, THREADS // lanes)
    together, warps = WARP // lanes, THREADS // WARP  # rows of a warp, at once
    levels, divides, load_divisor = together.bit_length() - 1, offset is not None, divisor_loader(offset)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def backward_final_sums(part_weight, part_bias, grad_weight, grad_bias, weight, eps):
        """Write the sum of part_weight's rows to grad_weight, and of part_bias's to grad_bias.

        part_…: (rows, n2 or more), accumulator dtype; grad_…: (n2,); both arrays of a parameter may be None. Blocks
        with y = 0 take the weight and those with y = 1 the bias; if only one of them is given, every block takes it.
        weight: (n2,), and eps: for the divisor, if there is one.
        """
        # First each thread's share of its columns.
        sums = cuda.shared.array((warps, columns), dtype)
        totals = cuda.local.array(width, dtype)
        for k in range(width):
            totals[k] = cast(0, sums)
        lane = lane_index()
        warp = warp_index()
        place = lane % lanes * width  # of the thread's first column, in the block
        first = cuda.blockIdx.x * columns
        group = warp * together + lane // lanes
        x = cuda.threadIdx.x
        column = first + x
        is_weight = part_weight is not None and (part_bias is None or cuda.blockIdx.y == 0)
        divisor = cast(1, sums)
        if divides and is_weight and x < columns:
            divisor = load_divisor(weight, eps, column, sums)
        grid_dependency_sync()  # the kernel may start early: all partial sums are written before a thread loads one
        if part_weight is not None and is_weight and first + place < part_weight.shape[1]:
            add_rows(part_weight, first + place, group, totals)
        if part_bias is not None and not is_weight and first + place < part_bias.shape[1]:
            add_rows(part_bias, first + place, group, totals)

        # Then the shares of a warp's threads that have the same columns, then those of all warps.
        for level in range(levels):
            for k in range(width):
                totals[k] += cuda.shfl_xor_sync(ALL_LANES, totals[k], lanes << level)
        if lane < lanes:
            for k in range(width):
                sums[warp, place + k] = totals[k]
        cuda.syncthreads()  # all warps' sums are in shared memory before one thread adds them up
        if x < columns:
            total = sums[0, x]
            for k in range(1, warps):
                total += sums[k, x]
            if grad_weight is not None and is_weight and column < grad_weight.shape[0]:
                store(grad_weight, column, total / divisor if divides else total)
            if grad_bias is not None and not is_weight and column < grad_bias.shape[0]:
                store(grad_bias, column, total)

    return backward_final_sums


@cache
def few_columns_sums(dtype: Any, width: int, together: int, divides: bool) -> Any:
    """Return the device function `add_up(partials, gradient, column, divisors)`: one thread adds up whole columns.

    It writes the sums of columns `column` to `column + width - 1` of `partials`, (rows, n2 or more), to `gradient`,
    (n2,), `together` elements at once. divides: the sums are divided by the divisors.
    """
    values_in_flight = FEW_IN_FLIGHT * width

    @cuda.jit(device=True)
    def add_up(partials, gradient, column, divisors):
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
        if divides:
            for k in range(width):
                sums[k] = sums[k] / divisors[k]
        for k in range(0, width, together):
            if together == width or column + k < gradient.shape[0]:
                store_vector_from(gradient, column + k, sums, k, together)

    return add_up


@cache
def build_few(dtype: Any, width: int, together: int, offset: float | None) -> Any:
    """Return the kernel for few rows. width: columns per thread. together: columns per store. offset: as in `build`."""
    divides, load_divisor = offset is not None, divisor_loader(offset)
    add_up_weight, add_up_bias = (few_columns_sums(dtype, width, together, one) for one in (divides, False))

    @cuda.jit(launch_bounds=(FEW_THREADS, 1))
    def backward_few_final_sums(part_weight, part_bias, grad_weight, grad_bias, weight, eps):
        """Do what `backward_final_sums` does; n2 and the gradients' addresses are multiples of `together` elements."""
        column = (cuda.blockIdx.x * FEW_THREADS + cuda.threadIdx.x) * width
        is_weight = part_weight is not None and (part_bias is None or cuda.blockIdx.y == 0)
        divisors = cuda.local.array(width, dtype)
        if divides and is_weight:
            for k in range(width):
                divisors[k] = load_divisor(weight, eps, column + k, divisors)
        grid_dependency_sync()  # all partial sums are written before a thread loads one
        if part_weight is not None and is_weight and column < part_weight.shape[1]:
            add_up_weight(part_weight, grad_weight, column, divisors)
        if part_bias is not None and not is_weight and column < part_bias.shape[1]:
            add_up_bias(part_bias, grad_bias, column, divisors)

    return backward_few_final_sums


def terms(rows: int) -> int:
    """Return the longest chain of additions over `rows` rows of partial sums, or over fewer rows.

    Fewer rows can have the longer chain: FEW_ROWS rows are one chain, more rows are shared by many threads.
    """
    if rows <= FEW_ROWS:
        return rows
    # A thread's rows, two levels over a warp's lanes, the warps. Fewer lanes side by side have two levels more, but a
    # quarter of the rows.
    return max(FEW_ROWS, -(-rows // (THREADS // MOST_LANES)) + 2 + THREADS // WARP)


def partial_sums_for(problem: BackwardProblem, rows: int, padded: bool = False) -> tuple[Scratch, ...]:
    """Return the memory for the partial sums of weight and bias where a gradient is wanted: (rows, n2) each.

    padded: a row has so many more columns that the next one begins with a vector of 16 bytes, which must be written.
    """
    shape = rows, _row_of_sums(problem, padded)
    wanted = ("part_weight", problem.weight), ("part_bias", problem.bias)
    return tuple(Scratch(name, shape, problem.invvar.dtype) for name, given in wanted if given is not None)


def _row_of_sums(problem: BackwardProblem, padded: bool) -> int:
    """Return how many columns a row of partial sums has."""
    n2, full = problem.shape[1], BYTES // problem.invvar.dtype.itemsize
    return -(-n2 // full) * full if padded else n2


def absent_partial_sums(problem: BackwardProblem) -> tuple[tuple[str, None], ...]:
    """Return None as the partial sums of each parameter that is absent, by the kernels' argument names."""
    wanted = ("part_weight", problem.weight), ("part_bias", problem.bias)
    return tuple((name, None) for name, given in wanted if given is None)


def sums_of(problem: BackwardProblem, rows: int, padded: bool = False, offset: float | None = None) -> tuple[Work, ...]:
    """Return the kernel that adds up `rows` rows of partial sums; nothing if there is neither weight nor bias.

    With parameters per sample, a row has the partial sums of all samples one after another. padded: as above. offset:
    the weight's sums are divided by gamma = weight + offset, clamped; None if they are not.
    """
    parameters = [parameter for parameter in (problem.weight, problem.bias) if parameter is not None]
    if not parameters:
        return ()
    n2 = _row_of_sums(problem, padded) * problem.samples
    arguments: tuple[str | View, ...] = *ARGUMENTS, *DIVISOR
    if problem.sampled:
        shapes = (rows, n2), (rows, n2), (n2,), (n2,)
        arguments = *map(View, ARGUMENTS, shapes), *DIVISOR
    dtype, full = accumulator(problem.invvar), BYTES // problem.invvar.dtype.itemsize
    if rows <= FEW_ROWS:
        together = min(full, widest(problem.shape[1] * problem.samples, *problem.gradients))
        width = full if padded else together  # scratch is aligned
        grid = -(-n2 // (width * FEW_THREADS)), len(parameters)
        return (Work(build_few, (dtype, width, together, offset), grid, (FEW_THREADS, 1), arguments),)
    width = gcd(n2, full)  # scratch is aligned; gradients are stored one by one
    columns = columns_for(n2, width)
    return (Work(build, (dtype, width, columns, offset), (-(-n2 // columns), len(parameters)), THREADS, arguments),)


def columns_for(n2: int, width: int) -> int:
    """Return how many columns a block of the first kernel has, with vectors of `width` columns."""
    columns = LEAST_COLUMNS
    while columns < MOST_LANES * width and columns * BLOCKS < n2:
        columns *= 2
    return columns
