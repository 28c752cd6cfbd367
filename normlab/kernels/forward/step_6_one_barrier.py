"""Several rows a block, each with a team of its own; one barrier for both sums.

Every warp finds the moments of its own part of the row, and one barrier later every warp merges all of them
(`stages.grouped`). A row of one warp needs no barrier at all, and short rows share a warp: each has some of its lanes,
whose sums take fewer shuffles. Small teams with a few vectors each, and several of them in a block, keep loads in
flight while others wait.
Moves: x once, the output once.
Bound by: memory. A multiprocessor has 32 to 96 KB on their way at a time.
Measured: see the README; 0.97 to 1.03 of a copy for rows of up to 32 or 64 KB, 1 to 4 hundredths of which are the hint
to L2 that reads have (`engine.caching`). Tried: parameters loaded before the reduction, stores behind all of their
loads, other hints, blocks that stay and take row after row, x read again for the output instead of held: no better, or
worse (0.93 the blocks that stay, 0.98 the second reading). Leaving out the statistics gains 1 to 3 hundredths at 768
and 1024, nothing from 4096 on.
Next: rows that no block can hold.
"""

from functools import cache

import numpy as np

from normlab.engine import accumulator, cast, cuda, load_vector_into, store, store_vector_from
from normlab.kernels.forward import layouts, step_4_column_blocks
from normlab.kernels.forward.layouts import Rows
from normlab.kernels.forward.operands import FACTOR_OPERANDS
from normlab.kernels.forward.tables import TABLES
from normlab.kernels.plan import Chains, Device, Plan, Refusal, Work, longest
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.stages.grouped import group_merger, group_size
from normlab.stages.recompute import affine, normalised_from_input
from normlab.stages.team import leave
from normlab.stages.vector import row_loader, widest
from normlab.stages.warp import lanes_sum

GRID_LIMIT = 2**31 - 1


@cache
def build(dtype, layout: Rows):
    """The kernel for an accumulator dtype and a layout."""
    deal, rows, resident = layout
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole
    elements, warps = deal.elements, deal.warps
    load_row, size, merge = row_loader(deal), group_size(deal, 1), group_merger(deal, 1)
    sum_of_lanes = lanes_sum(deal.lanes)

    @cuda.jit(launch_bounds=(deal.threads * rows, resident))
    def forward_one_barrier(x, weight, bias, eps, factor, output, mean, invvar):
        board = cuda.shared.array((1, rows, 2, warps), dtype)
        values = cuda.local.array(elements, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        n2 = x.shape[1]
        team = cuda.threadIdx.y
        warp = cuda.threadIdx.x >> 5
        first = cuda.threadIdx.x * width
        row = cuda.blockIdx.x * rows + team
        live = row < x.shape[0]  # the last block's teams may have none, but come to the barrier
        for k in range(elements):
            values[k] = cast(0, board)
        if live:
            load_row(values, x, row, first)
        center = cast(0, board)
        if mean is not None:
            total = cast(0, board)
            for k in range(elements):
                total += values[k]
            total = sum_of_lanes(total)
            center = total / cast(max(size(n2, warp), 1), board)  # of the warp's own values, so far
        square_sum = cast(0, board)
        for v in range(vectors):
            if mean is None or whole or first + v * span < n2:  # absent values are 0: no deviations from 0
                for k in range(width):
                    deviation = values[v * width + k] - center
                    square_sum += deviation * deviation
        square_sum = sum_of_lanes(square_sum)
        if warps > 1:
            if mean is not None:
                leave(board, 0, team, 0, warp, total)
            leave(board, 0, team, 1, warp, square_sum)
            cuda.syncthreads()  # all warps of a team have left their sums before any of them collects
            center, square_sum = merge(board, 0, team, n2, factor, mean)
        scale = cuda.libdevice.rsqrtf(square_sum * factor + eps)
        if live:
            for v in range(vectors):
                column = first + v * span
                if whole or column < n2:
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
            if cuda.threadIdx.x == 0:
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)

    return forward_one_barrier


def plan(problem: ForwardProblem, device: Device) -> Plan | Refusal:
    """Return the plan, if the registers of a block hold a row."""
    n1, n2 = problem.shape
    if problem.invvar.dtype.itemsize != 4:
        return Refusal("it computes in float32, and float64 is asked for")
    itemsize = max(problem.x.dtype.itemsize, problem.output.dtype.itemsize)
    chosen = layouts.rows_for(n2, widest(n2, *problem.matrices), itemsize, problem.mean is None)
    if chosen is None:
        return Refusal(f"the registers of a block do not hold {n2:,} columns")
    layout = chosen.layout
    grid = -(-n1 // layout.rows)
    if grid > GRID_LIMIT:
        return Refusal(f"{n1:,} rows take more blocks than the {GRID_LIMIT:,} of a grid")
    options = accumulator(problem.invvar), layout
    work = Work(build, options, grid, (layout.deal.threads, layout.rows), FACTOR_OPERANDS)
    values = (("factor", np.float32(1 / n2)),)
    return Plan("one_barrier", (work,), chosen.why, rows_of(layout), values=values, layout=layout)


def rows_of(layout: Rows) -> Chains:
    """Return the chains along a row."""
    return Chains(layout.deal.elements, 5 + (layout.deal.warps - 1).bit_length())


def _chains(n2: int) -> Chains:
    found = [
        layouts.rows_for(n2, width, itemsize, rms)
        for itemsize, rms in TABLES
        for width in (1, 2, 4, 16 // itemsize)
        if n2 % width == 0
    ]
    own = [rows_of(chosen.layout) for chosen in found if chosen is not None]
    return longest(*own, step_4_column_blocks.STEP.row_chains(n2))


STEP = ForwardStep(
    name="one_barrier",
    summary="several rows a block, both sums with one barrier",
    ways=(plan, step_4_column_blocks.plan),
    row_chains=_chains,
    simulated_seconds=lambda n1, n2: n1 * (0.002 + 13e-6 * n2),
    statistics="grouped",
)
