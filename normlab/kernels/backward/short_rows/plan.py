"""Plan the backward of short rows."""

import numpy as np

from normlab.engine import accumulator
from normlab.kernels.backward import final_sums
from normlab.kernels.backward.operands import OPERANDS
from normlab.kernels.backward.pipelined.kind import kind_of
from normlab.kernels.backward.short_rows.kernel import build
from normlab.kernels.backward.short_rows.tiles import layout_for
from normlab.kernels.plan import FLOAT32_ALONE, Chains, Device, PersistentPlan, Plan, Refusal, Work
from normlab.kernels.problem import BackwardProblem
from normlab.kernels.tiles import TileLayout
from normlab.kernels.words import counted
from normlab.stages.ahead import NARROWEST
from normlab.stages.vector import widest

# Rows per lane group, at most, in one block that does all rows to spare a second kernel. In one block and in several,
# RMSNorm of bfloat16 on an H100: 200 rows of 234 columns, 25 per lane group, 17.6 and 9.7 us; 100 rows of 64 columns, 4
# per lane group, 6.0 and 6.5 us.
ALONE = 8


def plan(problem: BackwardProblem, device: Device) -> PersistentPlan | Refusal:
    """Return the plan, if rows are short and asynchronous copies can bring them."""
    if problem.in_float64:
        return FLOAT32_ALONE
    n1, n2 = problem.shape
    extras = problem.grad_residual, problem.row_map, problem.gating
    if any(extra is not None for extra in extras) or problem.offset or problem.sampled:
        return Refusal("it does the plain norm")
    sizes = problem.saved.dtype.itemsize, problem.grad_output.dtype.itemsize, problem.grad_input.dtype.itemsize
    kind = kind_of(problem, width=1, together=1)
    chosen = layout_for(n2, sizes, 1 + kind.centered)
    if chosen is None:
        return Refusal(f"rows of {n2:,} columns are too long for tiles")
    layout = chosen.layout._replace(together=widest(chosen.layout.tile, *problem.matrices))
    if layout.together * min(sizes[:2]) < NARROWEST:
        return Refusal(f"no asynchronous copy is as narrow as {counted(layout.together, 'element')}")
    if layout.shared_bytes > device.shared_bytes:
        return Refusal(f"the tiles of {n2} columns need {layout.shared_bytes:,} bytes of shared memory")
    arguments = *OPERANDS, "factor", "row_sums", "grad_input", "grad_weight", "grad_bias", "part_weight", "part_bias"
    values = (("factor", np.float32(1 / n2)), *final_sums.absent_partial_sums(problem))

    def work(blocks: int) -> Work:
        options = accumulator(problem.invvar), layout, kind
        return Work(build, options, blocks, layout.threads, arguments, layout.shared_bytes)

    def persistent(resident: int) -> Plan:
        blocks = blocks_for(n1, layout, resident)
        sums = final_sums.sums_of(problem, blocks, False, kind.divisor_offset) if blocks > 1 else ()
        return Plan(
            "short_rows",
            (work(blocks), *sums),
            chosen.why,
            row_chains_of(layout),
            column_chains_of(n1, layout, blocks, blocks),
            scratch=final_sums.partial_sums_for(problem, blocks),
            values=values,
            layout=layout,
        )

    return PersistentPlan(work(1), final_sums.partial_sums_for(problem, 1), values, persistent)


def blocks_for(n1: int, layout: TileLayout, resident: int) -> int:
    """Return the number of blocks for n1 rows on a GPU that holds so many at a time."""
    tiles = -(-n1 // layout.rows)
    blocks = -(-tiles // layout.warps)
    return 1 if blocks * layout.turns <= ALONE else min(resident, blocks)


def row_chains_of(layout: TileLayout) -> Chains:
    """Return the chains along a row: a lane's elements, then the levels over its lanes."""
    return Chains(layout.elements, (layout.lanes - 1).bit_length())


def column_chains_of(n1: int, layout: TileLayout, blocks: int, parts: int) -> Chains:
    """Return the chains over n1 rows, done by so many blocks, that leave up to so many rows of partial sums."""
    # a lane group's rows, the block's warps, the final sums, and a division by gamma
    tiles = -(-n1 // layout.rows)
    rows = -(-tiles // (blocks * layout.warps)) * layout.turns
    levels = (layout.groups - 1).bit_length() + 2  # over the lane groups, and in the final sums
    return Chains(rows + layout.warps + final_sums.terms(parts) + 1, levels)


def layouts(n2: int) -> list[TileLayout]:
    """Return every layout that some dtypes lead to at this n2; the error bound must cover the worst."""
    sizes = ((2, 2, 2), (4, 4, 4), (2, 4, 2), (4, 2, 4), (2, 2, 4), (4, 4, 2))
    found = (layout_for(n2, some, statistics) for some in sizes for statistics in (1, 2))
    return [chosen.layout for chosen in found if chosen is not None]


def column_chains(n1: int, n2: int) -> list[Chains]:
    """Return the chains over rows, on any GPU, of every layout."""
    processors = final_sums.PROCESSORS
    return [
        column_chains_of(n1, one, *(blocks_for(n1, one, resident) for resident in (processors, 8 * processors)))
        for one in layouts(n2)
    ]
