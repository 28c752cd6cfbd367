"""Normalise several rows per block, each by its own warps, with one barrier for both sums.

Idea: each warp computes the moments of its own part of a row, and after one barrier each warp merges all of them
(`stages.grouped`). A row of one warp needs no barrier; several short rows share a warp.
Moves: x once, the output once.
Bound by: memory. Each multiprocessor has 32 to 96 KB in flight.
Measured: 0.97 to 1.03 of a copy for rows of up to 32 or 64 KB on an H200 (README). The L2 hint of the loads gives 0.01
to 0.04 of that (`engine.caching`); a kernel without statistics would gain 0.01 to 0.03 at n2 = 768 and 1024 and nothing
from 4096 on. Tried without gain: parameters loaded before the reduction, stores after all of their loads, other hints.
Worse: persistent blocks (0.93), x read again instead of held in registers (0.98).
Next: rows that no block can hold.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from normlab.engine import accumulator, cast, cuda, load_vector_into, store, store_vector_from
from normlab.kernels.forward import step_4_column_blocks
from normlab.kernels.step import Chains, ForwardStep, longest
from normlab.stages.grouped import group_merger, group_size
from normlab.stages.recompute import affine, normalised_from_input
from normlab.stages.row_group import leave
from normlab.stages.vector import Deal, dealt, row_loader, whole_warps, widest
from normlab.stages.warp import lanes_sum


class Plan(NamedTuple):
    """deal: of a row to its threads. rows: of a block. resident: blocks that a multiprocessor has registers for."""

    deal: Deal
    rows: int
    resident: int = 1


class Entry(NamedTuple):
    """How rows of up to `most` vectors are dealt out.

    threads: of a row; fewer than 32 are lanes of a warp. each: vectors of a thread, where the row's length decides how
    many threads that takes. rows: of a block. resident: threads for which a multiprocessor must have registers; 0: the
    compiler takes as many registers as it likes.
    """

    most: int
    rows: int
    threads: int = 0
    each: int = 0
    resident: int = 0


# Measured on an H200 with n2 from 64 to 16,384, as fractions of a copy. Rows that end within a warp: LayerNorm /
# RMSNorm.
SHORT_HALVES = (  # eight elements a vector
    Entry(8, 32, threads=4),  # 64: 0.98 / 1.00; a whole warp: 0.24 / 0.36
    Entry(16, 128, threads=4),  # 128: 0.98 / 0.99; 8 lanes, 256 threads a block: 0.96 / 0.98
    Entry(32, 64, threads=8),  # 256: 0.98 / 1.00; a whole warp: 0.81 / 0.95
    Entry(48, 16, threads=16),  # 384: 1.00 / 1.02; a whole warp: 0.71 / 0.90
)
SHORT_SINGLES = (  # four elements a vector
    Entry(16, 64, threads=8),  # 64: 0.99 / 1.01; a whole warp: 0.64 / 0.77
    Entry(32, 32, threads=16),  # 128: 1.01 / 1.02
    Entry(64, 32, threads=16),  # 256: 1.02 / 1.02
    Entry(96, 16, threads=32),  # 384: 1.01 / 1.02
)
# Longer ones. In 16 bits from 4096 on LayerNorm wants few threads with four vectors each; RMSNorm, which has a pass
# less, wants many with two, up to 8192: as many as a multiprocessor holds, if need be with no more registers than that
# leaves them. In 32 bits two vectors are mostly best for both.
LAYER_HALVES = (
    *SHORT_HALVES,
    Entry(96, 8, threads=32),  # 768: 1.01; four rows: 1.00
    Entry(128, 2, each=2, resident=1536),  # 1024: 1.00; four vectors, 16 rows: 0.99
    Entry(256, 1, each=2, resident=1536),  # 2048: 1.00; four vectors, four rows: 0.99
    Entry(512, 2, each=4),  # 4096: 1.00; two vectors: 0.97
    Entry(2048, 1, each=4),  # 5120, 8192: 1.00, 16384: 0.98; two rows: 0.99, 0.97, 0.87; two vectors: 0.88 to 0.65
)
RMS_HALVES = (
    *SHORT_HALVES,
    Entry(96, 16, threads=32),  # 768: 1.02; eight rows: 1.01
    Entry(128, 4, each=2),  # 1024: 1.01; four vectors: 1.00
    Entry(256, 2, each=2),  # 2048: 1.01; four vectors: four rows 1.00, eight 1.01
    Entry(512, 1, each=2),  # 4096: 1.01; four vectors: one row 1.00, four 1.01
    Entry(1024, 1, each=2, resident=2048),  # 5120, 8192: 1.01; with more registers: 0.93, 0.98; four vectors: 1.00
    Entry(2048, 1, each=4),  # 16384: 1.00; two vectors: 0.99
)
LAYER_SINGLES = (
    *SHORT_SINGLES,
    Entry(256, 2, each=2),  # 768: 1.01, 1024: 1.03; one row: 1.00, 1.02
    Entry(512, 4, each=4),  # 2048: 1.03; one row: 1.02
    Entry(1280, 1, each=2),  # 4096: 1.03, 5120: 1.01; four vectors, one row: 1.02, 1.01
    Entry(4096, 1, threads=512),  # 8192: 1.01, 16384: 1.00; 1024 threads: 0.99, 0.92
)
RMS_SINGLES = (
    *SHORT_SINGLES,
    Entry(256, 4, each=2),  # 768: 1.03, 1024: 1.02; one row: 1.02, 1.02; eight rows, 1024: 1.03
    Entry(512, 4, each=2),  # 2048: 1.03; four vectors, one row: 1.03
    Entry(2048, 1, each=2),  # 4096: 1.02, 5120: 1.01, 8192: 1.02; four vectors: 1.02, 1.00, 1.01
    Entry(4096, 1, each=4, resident=2048),  # 16384: 1.02; with more registers: 0.98; eight vectors: 1.01
)
TABLES = {(2, False): LAYER_HALVES, (2, True): RMS_HALVES, (4, False): LAYER_SINGLES, (4, True): RMS_SINGLES}
MAX_THREADS = 1024
GRID_LIMIT = 2**31 - 1
MAX_ELEMENTS = {512: 64, 1024: 32}  # of a thread, in a block of up to so many


def plan_for(n2: int, width: int, itemsize: int, rms: bool) -> Plan | None:
    """How rows of n2 are dealt out, with vectors of `width` elements; itemsize: of the widest array.

    None: a block's registers do not hold the row. Depends on no n1: a row's bits are the same in every batch.
    """
    count = -(-n2 // width)
    otherwise = Entry(count, 1, threads=MAX_THREADS)  # narrow vectors may be more than any entry has
    entry = next((entry for entry in TABLES[itemsize, rms] if count <= entry.most), otherwise)
    deal = dealt(n2, width, entry.threads or whole_warps(-(-count // entry.each)))
    threads = deal.threads * entry.rows
    largest = min(limit for limit in MAX_ELEMENTS if limit >= threads)
    return Plan(deal, entry.rows, max(1, entry.resident // threads)) if deal.elements <= MAX_ELEMENTS[largest] else None


@cache
def build(dtype, plan: Plan):
    """Return the kernel for an accumulator dtype and a plan."""
    deal, rows, resident = plan
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole
    elements, warps = deal.elements, deal.warps
    load_row, size, merge = row_loader(deal), group_size(deal, 1), group_merger(deal, 1)
    sum_of_lanes = lanes_sum(deal.lanes)

    @cuda.jit(launch_bounds=(deal.threads * rows, resident))
    def forward_one_barrier(x, weight, bias, eps, factor, output, mean, invvar):
        # Prologue: a block has `rows` rows of threads, one per row of x.
        exchange = cuda.shared.array((1, rows, 2, warps), dtype)
        values = cuda.local.array(elements, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        n2 = x.shape[1]
        group = cuda.threadIdx.y
        warp = cuda.threadIdx.x >> 5
        first = cuda.threadIdx.x * width
        row = cuda.blockIdx.x * rows + group
        live = row < x.shape[0]  # false in the last block's spare warps, which must still reach the barrier

        # Fetch: the whole row goes to registers, with all loads in flight at once.
        for k in range(elements):
            values[k] = cast(0, exchange)
        if live:
            load_row(values, x, row, first)

        # First pass, over registers: the mean and then the squares of this warp's own values.
        center = cast(0, exchange)
        if mean is not None:
            total = cast(0, exchange)
            for k in range(elements):
                total += values[k]
            total = sum_of_lanes(total)
            center = total / cast(max(size(n2, warp), 1), exchange)  # the warp's mean; max: it may have no values
        square_sum = cast(0, exchange)
        for v in range(vectors):
            if mean is None or whole or first + v * span < n2:  # RMSNorm: a 0 past the end adds nothing
                for k in range(width):
                    deviation = values[v * width + k] - center
                    square_sum += deviation * deviation
        square_sum = sum_of_lanes(square_sum)

        # Exchange: one barrier for both sums.
        if warps > 1:  # else the warp's moments are the row's
            if mean is not None:
                leave(exchange, 0, group, 0, warp, total)
            leave(exchange, 0, group, 1, warp, square_sum)
            cuda.syncthreads()  # all warps of a row have written their sums before a warp reads them
            center, square_sum = merge(exchange, 0, group, n2, factor, mean)
        scale = cuda.libdevice.rsqrtf(square_sum * factor + eps)  # factor: 1 / n2

        # Second pass, over registers: normalise and store.
        if live:
            for v in range(vectors):
                column = first + v * span
                if whole or column < n2:
                    # Parameters come from L1 or L2. Loading them before the exchange was no faster.
                    if weight is not None:
                        load_vector_into(gammas, 0, weight, column, width)
                    if bias is not None:
                        load_vector_into(betas, 0, bias, column, width)
                    for k in range(width):
                        gamma = None if weight is None else gammas[k]
                        beta = None if bias is None else betas[k]
                        value = normalised_from_input(values[v * width + k], center, scale)
                        values[v * width + k] = affine(value, gamma, beta)
                    store_vector_from(output, (row, column), values, v * width, width)

            # Epilogue: one thread per row stores the statistics.
            if cuda.threadIdx.x == 0:
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)

    return forward_one_barrier


def launch_rows(launch, x, weight, bias, eps, output, mean, invvar) -> bool:
    """Queue the kernel, if a plan has it; else say so."""
    n1, n2 = x.shape
    if invvar.dtype.itemsize != 4:
        return False
    width = widest(n2, x, weight, bias, output)
    plan = plan_for(n2, width, max(x.dtype.itemsize, output.dtype.itemsize), mean is None)
    if plan is None or -(-n1 // plan.rows) > GRID_LIMIT:
        return False
    kernel, factor = build(accumulator(invvar), plan), np.float32(1 / n2)
    grid, block = -(-n1 // plan.rows), (plan.deal.threads, plan.rows)
    launch(kernel, grid, block, x, weight, bias, eps, factor, output, mean, invvar)
    return True


def _run(launch, x, weight, bias, eps, output, mean, invvar):
    if not launch_rows(launch, x, weight, bias, eps, output, mean, invvar):
        step_4_column_blocks.STEP.run(launch, x, weight, bias, eps, output, mean, invvar)


def _chains(n2: int) -> Chains:
    plans = [
        plan_for(n2, width, itemsize, rms)
        for itemsize, rms in TABLES
        for width in (1, 2, 4, 16 // itemsize)
        if n2 % width == 0
    ]
    own = [Chains(plan.deal.elements, 5 + (plan.deal.warps - 1).bit_length()) for plan in plans if plan is not None]
    return longest(*own, step_4_column_blocks.STEP.row_chains(n2))


STEP = ForwardStep(
    name="one_barrier",
    summary="several rows a block, both sums with one barrier",
    run=_run,
    row_chains=_chains,
    simulated_seconds=lambda n1, n2: n1 * (0.002 + 13e-6 * n2),
    statistics="grouped",
)
