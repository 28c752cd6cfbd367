"""What one thread does of a product: its share of a tile of C, in registers.

A share is rows and columns in runs of four, which one instruction of 16 bytes moves; the runs lie `span` apart, because
other threads have theirs in between. With x rows and y columns a thread reads x + y elements from shared memory for
each k and multiplies x y times: the larger its share, the less it has to read.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda, float32, load, load_vector_into, store_vector_from

RUN = 4  # float32 in 16 bytes


class Share(NamedTuple):
    """A thread's rows, or its columns: `runs` of four, each beginning `span` behind the one before."""

    runs: int
    span: int

    @property
    def elements(self) -> int:
        """How many rows, or columns."""
        return RUN * self.runs


@cuda.jit(device=True)
def scaled_sum(total, alpha, beta, c, row, column):
    """Alpha total + beta C[row, column], float32; `c` is None where beta is 0: C is then not read."""
    value = alpha * total
    if c is not None:
        value += beta * load(c, (row, column))
    return value


@cache
def part_loader(share: Share) -> Any:
    """The device function `load_part(part, start, tile, first)`: a thread's rows of A, or columns of B, for one k.

    part: local, float32, filled from `start` on; tile: shared, 1-D; first: where in there the thread's first run of
    that k begins, a multiple of four.
    """
    runs, span = share

    @cuda.jit(device=True)
    def load_part(part, start, tile, first):
        for run in range(runs):
            load_vector_into(part, start + RUN * run, tile, first + run * span, RUN)

    return load_part


@cache
def outer_product(rows: int, columns: int) -> Any:
    """The device function `multiply(sums, a_part, b_part, start)`: sums[i, j] += a[i] b[j], one fused operation each.

    sums: local, (rows * columns,), float32, as a whole; a_part, b_part: local. `start`: 0, or 1 for the second halves
    of parts that hold two k's.
    """

    @cuda.jit(device=True)
    def multiply(sums, a_part, b_part, start):
        for i in range(rows):
            for j in range(columns):
                sums[i * columns + j] += a_part[start * rows + i] * b_part[start * columns + j]

    return multiply


@cache
def share_storer(rows: Share, columns: Share, width: int) -> Any:
    """The device function `store_share(output, sums, alpha, beta, c, top, left)`: alpha sums + beta C, where C exists.

    output, c: (M, N); c may be None, as in `scaled_sum`. top, left: of the thread's first run in C. width: elements
    that one instruction may move in both, a divisor of N.
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
            if row < output.shape[0]:
                for j in range(0, RUN * column_runs, width):
                    column = left + j // RUN * column_span + j % RUN
                    if column < output.shape[1]:
                        for q in range(width):
                            values[q] = alpha * sums[i * columns_of_thread + j + q]
                        if c is not None:
                            load_vector_into(others, 0, c, (row, column), width)
                            for q in range(width):
                                values[q] += beta * others[q]
                        store_vector_from(output, (row, column), values, 0, width)

    return store_share
