"""Plan the backward of short rows."""

import numpy as np

from normlab.engine import accumulator
from normlab.kernels.backward import final_sums
from normlab.kernels.backward.operands import OPERANDS
from normlab.kernels.backward.pipelined.kind import kind_of
from normlab.kernels.backward.short_rows.kernel import build
from normlab.kernels.backward.short_rows.tiles import layout_for, with_larger_tiles
from normlab.kernels.plan import FLOAT32_ALONE, Chains, Device, PersistentPlan, Plan, Refusal, Work
from normlab.kernels.problem import BackwardProblem
from normlab.kernels.tiles import TileLayout, with_smaller_tiles
from normlab.kernels.words import counted
from normlab.stages.ahead import NARROWEST
from normlab.stages.vector import WARP, widest

# Where a tile per warp would leave multiprocessors idle, all warps of a block take each tile together, and each lane
# group has one of the tile's rows. On an H200, in us:
#
#     rows x columns                      a tile per warp    per block
#           4 x 229, LayerNorm bfloat16         8.0             5.4
#         100 x 229                             9.5             7.3
#       1,000 x 229                             9.7             7.3
#      12,672 x 229                            16.0            14.1
#       1,000 x 119, RMSNorm float16            8.0             6.8
#      67,584 x   7, RMSNorm bfloat16           7.8             7.6
#     101,376 x   7                             7.9             8.3
FEW_TILES = {True: 8, False: 2}  # tiles per multiprocessor, at most, if a row takes a whole warp (True) or less
# Tiles, at most, that one block takes one after another to do all rows. A second tile takes less time than a second
# kernel if a row takes a whole warp, and more time if it takes less than a warp.
ALONE = {True: 2, False: 1}
TILES = 16  # per multiprocessor, at least, before tiles become larger
FEW_WHY = "so few rows have all warps of a block at each tile: 1,000 x 229 take 7.3 us instead of 9.7 (LayerNorm, H200)"


def plan(problem: BackwardProblem, device: Device) -> PersistentPlan | Refusal:
    """Return the plan, if rows are short and asynchronous copies can bring them."""
    if problem.in_float64:
        return FLOAT32_ALONE
    n1, n2 = problem.shape
    extras = problem.grad_residual, problem.row_map, problem.gating
    if any(extra is not None for extra in extras) or problem.offset or problem.sampled:
        return Refusal("it does the plain norm")
    sizes = problem.saved.dtype.itemsize, problem.grad_output.dtype.itemsize, problem.grad_input.dtype.itemsize
    kind = kind_of(problem, width=1, together=1)  # parameters are loaded one by one and widened, never kept in 16 bits
    chosen = layout_for(n2, sizes, 1 + kind.centered)  # statistics: invvar, and the mean where it is needed
    if chosen is None:
        return Refusal(f"rows of {n2:,} columns are too long for tiles")
    # Asked of tiles that warps do not share, which are larger: at one n2 few and many rows must have the same kernel,
    # and so the same bits.
    if chosen.layout.shared_bytes > device.shared_bytes:
        needed = chosen.layout.shared_bytes
        return Refusal(f"the tiles of {n2} columns need {needed:,} bytes of shared memory")
    layout = shared_by_warps(n1, chosen.layout, device)
    layout = layout._replace(together=widest(layout.tile, *problem.matrices))
    if layout.together * min(sizes[:2]) < NARROWEST:
        return Refusal(f"no asynchronous copy is as narrow as {counted(layout.together, 'element')}")
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
            chosen.why if layout.warps_per_tile == 1 else f"{chosen.why}; {FEW_WHY}",
            row_chains_of(layout),
            column_chains_of(n1, layout, blocks, blocks),
            scratch=final_sums.partial_sums_for(problem, blocks),
            values=values,
            layout=layout,
        )

    return PersistentPlan(work(1), final_sums.partial_sums_for(problem, 1), values, persistent)


def shared_by_warps(n1: int, layout: TileLayout, device: Device) -> TileLayout:
    """Return the layout for n1 rows: as given, or with all warps at each tile. A row has the same bits either way."""
    shared = few_rows_layout(layout)
    tiles, whole_warp = -(-n1 // shared.rows), layout.lanes == WARP
    # One block in which each warp has a tile spares the second kernel that several blocks need.
    needs_one_block = not whole_warp and n1 <= layout.warps * layout.rows
    few = tiles <= FEW_TILES[whole_warp] * device.multiprocessors and not needs_one_block
    if few or tiles == 1:
        return shared
    if needs_one_block:
        return layout
    # Larger tiles, as far as there are as many as multiprocessors hold warps.
    larger = with_larger_tiles(layout, device.shared_bytes)
    return with_smaller_tiles(larger, n1, TILES * device.multiprocessors, layout.rows)


def few_rows_layout(layout: TileLayout) -> TileLayout:
    """Return the layout in which all warps of a block take a tile together, a row per lane group."""
    return layout._replace(turns=layout.warps, warps_per_tile=layout.warps)


def blocks_for(n1: int, layout: TileLayout, resident: int) -> int:
    """Return the number of blocks for n1 rows. resident: how many blocks the GPU holds at a time."""
    blocks = -(-n1 // (layout.rows * layout.tiles_at_once))
    return 1 if blocks <= ALONE[layout.lanes == WARP] else min(resident, blocks)


def row_chains_of(layout: TileLayout) -> Chains:
    """Return the chains along a row: a lane's elements, then the levels over the row's lanes."""
    return Chains(layout.thread_map.elements, (layout.lanes - 1).bit_length())


def column_chains_of(n1: int, layout: TileLayout, blocks: int, parts: int) -> Chains:
    """Return the chains over n1 rows, which `blocks` blocks add up to at most `parts` rows of partial sums."""
    tiles = -(-n1 // layout.rows)
    rows = -(-tiles // (blocks * layout.tiles_at_once)) * layout.turns_per_warp
    levels = (layout.groups - 1).bit_length() + 2  # over the lane groups, and in the final sums
    # a lane group's rows, the block's warps, the final sums, and a division by gamma
    return Chains(rows + layout.warps + final_sums.terms(parts) + 1, levels)


def layouts(n2: int) -> list[TileLayout]:
    """Return every layout that some dtypes lead to at this n2; the error bound must cover the worst."""
    sizes = ((2, 2, 2), (4, 4, 4), (2, 4, 2), (4, 2, 4), (2, 2, 4), (4, 4, 2))
    found = (layout_for(n2, some, statistics) for some in sizes for statistics in (1, 2))
    many = [chosen.layout for chosen in found if chosen is not None]
    return [*many, *map(few_rows_layout, many), *(with_larger_tiles(one, shared_bytes=2**30) for one in many)]


def column_chains(n1: int, n2: int) -> list[Chains]:
    """Return the chains over rows of every layout, on any GPU."""
    processors = final_sums.PROCESSORS  # each holds 1 to 8 blocks at a time
    return [
        column_chains_of(n1, one, *(blocks_for(n1, one, resident) for resident in (processors, 8 * processors)))
        for one in layouts(n2)
    ]
