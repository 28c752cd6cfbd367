"""Compute one thread's share of a tile of C in registers.

A share has x rows and y columns, in runs of four, because one instruction moves 16 bytes. The runs lie `span` apart,
with the runs of other threads in between. For each k a thread reads x + y elements from shared memory and multiplies
x y times: the larger its share, the fewer loads per multiplication.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda, float32, load, load_vector_into, store_vector_from

RUN = 4  # float32 values in the 16 bytes of one load


class Share(NamedTuple):
    """A thread's rows, or its columns: `runs` runs of four, whose beginnings lie `span` apart."""

    runs: int
    span: int

    @property
    def elements(self) -> int:
        """Return the number of rows, or of columns."""
        return RUN * self.runs


@cuda.jit(device=True)
def scaled_sum(total, alpha, beta, c, row, column):
    """Return alpha total + beta C[row, column] as float32; c is None where beta is 0."""
    value = alpha * total
    if c is not None:  # BLAS: with beta = 0 C is not read, it may hold NaN
        value += beta * load(c, (row, column))
    return value


@cache
def part_loader(share: Share) -> Any:
    """Return the device function `load_part(part, start, tile, first)`: load a thread's elements of A or B for one k.

    part: local, float32, filled from `start` on. tile: shared, 1-D. first: the index in it at which the thread's first
    run for this k begins, a multiple of four.
    """
    runs, span = share

    @cuda.jit(device=True)
    def load_part(part, start, tile, first):
        for run in range(runs):  # a run is one load of 16 bytes
            load_vector_into(part, start + RUN * run, tile, first + run * span, RUN)

    return load_part


@cache
def outer_product(rows: int, columns: int) -> Any:
    """Return the device function `multiply(sums, a_part, b_part, start)`, which adds a[i] b[j] to each sums[i, j].

    sums: local, (rows * columns,), float32. a_part, b_part: local; they may hold the elements of two k's, and `start`
    is 0 for the first k and 1 for the second.
    """

    @cuda.jit(device=True)
    def multiply(sums, a_part, b_part, start):
        for i in range(rows):
            for j in range(columns):  # one fused multiply-add each: both factors are in registers
                sums[i * columns + j] += a_part[start * rows + i] * b_part[start * columns + j]

    return multiply


@cache
def share_storer(rows: Share, columns: Share, width: int) -> Any:
    """Return the device function `store_share(output, sums, alpha, beta, c, top, left)`: store alpha sums + beta C.

    output, c: (M, N); c may be None, as in `scaled_sum`. top, left: row and column of the thread's first run in C.
    width: elements per instruction in output and c, a divisor of N.
    """
    row_runs, row_span = rows
    column_runs, column_span = columns
    columns_of_thread = columns.elements

    @cuda.jit(device=True)
    def store_share(output, sums, alpha, beta, c, top, left):
        values = cuda.local.array(width, float32)
        others = cuda.local.array(width, float32)
        for i in range(RUN * row_runs):
            row = top + i // RUN * row_span + i % RUN
            if row < output.shape[0]:  # the last tiles reach past the matrix
                for j in range(0, RUN * column_runs, width):
                    # a vector never crosses a run, because `width` divides RUN
                    column = left + j // RUN * column_span + j % RUN
                    if column < output.shape[1]:  # N is a multiple of `width`: a vector lies inside as a whole
                        for q in range(width):
                            values[q] = alpha * sums[i * columns_of_thread + j + q]
                        # A constant of the kernel: without a C neither load nor registers for it are compiled.
                        if c is not None:
                            load_vector_into(others, 0, c, (row, column), width)
                            for q in range(width):
                                values[q] += beta * others[q]
                        store_vector_from(output, (row, column), values, 0, width)

    return store_share
