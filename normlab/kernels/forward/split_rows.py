"""Cut rows that no block holds, and no cluster holds well, into pieces (`kernels.split`), and read them twice.

    pieces       one block per piece of a row: its sum, and the sum of its squared deviations from its own mean
    statistics   one block per row: merges the pieces as step 6 merges warps (`stages.grouped`)
    output       one thread per few columns, row after row

Idea: pieces keep all multiprocessors busy with a few rows of millions of columns.
Moves: x twice, the output once: 3 arrays where 2 would do.
Bound by: memory.
Measured: on an H200 32 rows of 802,816 columns took 0.57 of a copy in float32 and 0.52 in bfloat16, 8 rows of 3,211,264
took 0.59 and 0.55. Reading twice allows 0.67. A cluster took 0.21 for 32 rows of 802,816 in bfloat16: its blocks are
alone on their multiprocessors, and a block's next row has to wait for this one.
"""

from functools import cache
from typing import Any

import numpy as np

from normlab.engine import accumulator, cast, cuda, load, load_vector_into, store, store_vector_from
from normlab.kernels.plan import FLOAT32_ALONE, GRID_LIMIT_Y, Device, Plan, Refusal, Scratch, Work
from normlab.kernels.problem import ForwardProblem
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
)
from normlab.stages.block import block_sum
from normlab.stages.output import parameter_loader, vector_normaliser
from normlab.stages.vector import widest
from normlab.stages.warp import warp_sum_butterfly

PIECES = "x", "sums"
STATISTICS = "x", "sums", "eps", "factor", "mean", "invvar"
OUTPUT = "x", "weight", "bias", "mean", "invvar", "output"


@cache
def build_pieces(dtype: Any, width: int, rms: bool) -> Any:
    """Return the kernel `forward_split_pieces`. Grid (pieces, rows), block THREADS; a thread has VECTORS vectors."""
    span, elements = THREADS * width, VECTORS * width  # columns of one vector per thread; elements per thread

    @cuda.jit(launch_bounds=(THREADS, 1))
    def forward_split_pieces(x, sums):
        """Write the pieces' sums to sums, (2 n1, pieces): first the values', then the squared deviations'."""
        buffer = cuda.shared.array((2, WARPS), dtype)  # of `block_sum`
        values = cuda.local.array(elements, dtype)
        n1, n2 = x.shape
        # Prologue: the same columns of each row, so that a row's bits do not depend on the rows beside it.
        start = cuda.blockIdx.x * VECTORS * span
        first = start + cuda.threadIdx.x * width
        size = min(VECTORS * span, n2 - start)  # the last piece may be shorter
        row = cuda.blockIdx.y
        while row < n1:
            # Fetch: the piece goes to registers, for both passes over it.
            for v in range(VECTORS):
                if first + v * span < n2:
                    load_vector_into(values, v * width, x, (row, first + v * span), width)
            # First pass: the piece's sum and mean.
            center = cast(0, sums)
            if not rms:
                total = cast(0, sums)
                for v in range(VECTORS):
                    if first + v * span < n2:
                        for k in range(width):
                            total += values[v * width + k]
                total = block_sum(warp_sum_butterfly(total), buffer)
                center = total / cast(size, sums)
                if cuda.threadIdx.x == 0:
                    store(sums, (row, cuda.blockIdx.x), total)
            # Second pass: squared deviations from the piece's own mean; the next kernel adds those between pieces.
            square_sum = cast(0, sums)
            for v in range(VECTORS):
                if first + v * span < n2:
                    for k in range(width):
                        deviation = values[v * width + k] - center
                        square_sum += deviation * deviation
            # The barriers in `block_sum` also keep the buffer's first result until all threads have read it.
            square_sum = block_sum(warp_sum_butterfly(square_sum), buffer)
            if cuda.threadIdx.x == 0:
                store(sums, (n1 + row, cuda.blockIdx.x), square_sum)
            row += cuda.gridDim.y  # a grid has at most 65,535 blocks in y

    return forward_split_pieces


@cache
def row_merger(width: int, rms: bool) -> Any:
    """Return the device function `merge_row(sums, row, rows, n2, factor, buffer)`, for a block of ROW_THREADS.

    It returns the row's mean and its sum of squared deviations from it; for RMSNorm 0 and the sum of squares.
    sums: of `forward_split_pieces`. rows: n1. factor: 1 / n2. buffer: shared, (2, ROW_WARPS).
    """
    span = THREADS * VECTORS * width  # columns of a piece

    @cuda.jit(device=True)
    def merge_row(sums, row, rows, n2, factor, buffer):
        # The row's mean, from the pieces' sums.
        center = cast(0, sums)
        if not rms:
            total = cast(0, sums)
            piece = cuda.threadIdx.x
            while piece < sums.shape[1]:
                total += load(sums, (row, piece))
                piece += ROW_THREADS
            center = block_sum(warp_sum_butterfly(total), buffer) * factor
        # The squares within the pieces and, for LayerNorm, between them: see `stages.grouped`.
        square_sum = cast(0, sums)
        piece = cuda.threadIdx.x
        while piece < sums.shape[1]:
            square_sum += load(sums, (rows + row, piece))
            if not rms:  # n_w (s_w / n_w - mean)²: no difference of two large squares
                size = cast(min(span, n2 - piece * span), sums)
                deviation = load(sums, (row, piece)) / size - center
                square_sum += size * (deviation * deviation)
            piece += ROW_THREADS
        return center, block_sum(warp_sum_butterfly(square_sum), buffer)

    return merge_row


@cache
def build_statistics(dtype: Any, width: int, rms: bool) -> Any:
    """Return the kernel `forward_split_statistics`. Grid rows, block ROW_THREADS."""
    merge_row = row_merger(width, rms)

    @cuda.jit(launch_bounds=(ROW_THREADS, 1))
    def forward_split_statistics(x, sums, eps, factor, mean, invvar):
        """Merge each row's pieces; write its mean and invvar. sums: as above. factor: 1 / n2."""
        buffer = cuda.shared.array((2, ROW_WARPS), dtype)
        n1, n2 = x.shape
        row = cuda.blockIdx.x
        center, square_sum = merge_row(sums, row, n1, n2, factor, buffer)
        if cuda.threadIdx.x == 0:
            if mean is not None:
                store(mean, row, center)
            store(invvar, row, cuda.libdevice.rsqrtf(square_sum * factor + eps))

    return forward_split_statistics


@cache
def build_output(dtype: Any, width: int) -> Any:
    """Return the kernel `forward_split_output`.

    Grid (columns / (COLUMN_THREADS width), groups of rows), block COLUMN_THREADS.
    """
    elements = AT_ONCE * width  # one vector of each row that is fetched ahead
    load_parameters, normalise_vector = parameter_loader(width), vector_normaliser(width)

    @cuda.jit(launch_bounds=(COLUMN_THREADS, 1))
    def forward_split_output(x, weight, bias, mean, invvar, output):
        values = cuda.local.array(elements, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        n1, n2 = x.shape
        column = (cuda.blockIdx.x * COLUMN_THREADS + cuda.threadIdx.x) * width
        if column < n2:  # no barrier below: threads past the row's end may leave
            # Prologue: parameters stay in registers for all rows.
            load_parameters(gammas, betas, weight, bias, column)
            top = cuda.blockIdx.y
            stride = cuda.gridDim.y
            while top < n1:
                # Fetch AT_ONCE rows: their loads are in flight together.
                for ahead in range(AT_ONCE):
                    row = top + ahead * stride
                    if row < n1:
                        load_vector_into(values, ahead * width, x, (row, column), width)
                # Normalise and store these rows.
                for ahead in range(AT_ONCE):
                    row = top + ahead * stride
                    if row < n1:
                        scale = load(invvar, row)
                        center = None if mean is None else load(mean, row)
                        normalise_vector(values, ahead * width, gammas, betas, weight, bias, center, scale)
                        store_vector_from(output, (row, column), values, ahead * width, width)
                top += AT_ONCE * stride  # groups of rows share the columns, so that few columns fill the GPU

    return forward_split_output


def plan(problem: ForwardProblem, device: Device) -> Plan | Refusal:
    """Return the plan."""
    if problem.in_float64:
        return FLOAT32_ALONE
    n1, n2 = problem.shape
    width = widest(n2, *problem.matrices)  # rows of 16-byte vectors where all arrays allow them
    dtype, pieces, rms = accumulator(problem.invvar), pieces_for(n2, width), problem.mean is None
    groups = groups_for(n1, n2, width, device.multiprocessors)
    return Plan(
        "split_rows",
        (
            Work(build_pieces, (dtype, width, rms), (pieces, min(n1, GRID_LIMIT_Y)), THREADS, PIECES),
            Work(build_statistics, (dtype, width, rms), n1, ROW_THREADS, STATISTICS),
            Work(build_output, (dtype, width), (-(-n2 // (COLUMN_THREADS * width)), groups), COLUMN_THREADS, OUTPUT),
        ),
        "0.52 of a copy for 32 rows of 802,816 bfloat16, where reading twice allows 0.67; a cluster per row: 0.21",
        row_chains_of(pieces, width),
        reads=2,
        scratch=(Scratch("sums", (2 * n1, pieces), problem.invvar.dtype),),
        values=(("factor", np.float32(1 / n2)),),
        layout=Pieces(pieces, width, groups),
    )
