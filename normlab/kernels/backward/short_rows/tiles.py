"""List the short rows that the backward takes as tiles, and why."""

from normlab.kernels.plan import Chosen
from normlab.kernels.tiles import Reason, TileLayout, lanes_for, tile_for
from normlab.stages.vector import BYTES, WARP

STAGE_BYTES = 4096  # per stage, about: 16 warps per multiprocessor then have 64 KB in flight
# The same where rows are many, for two reasons. Lane groups of less than a warp (False) wait for each other in small
# tiles (`TileLayout.apart`). And where a row takes a whole warp (True), a small tile is eight rows: of 129 columns they
# are 129 vectors, and the last one takes a warp as long as 32 of them. LayerNorm of bfloat16 on an H200, fractions of a
# copy: 119 columns 0.94 instead of 0.89, 129 columns 0.93 instead of 0.86, 161 columns 0.92 instead of 0.88.
MOST_BYTES = {False: 8448, True: 14784}

LONGEST_OF_32_BITS = 180  # columns: longer rows were measured in the pipelined kernel alone

# Measured on an H200 with 2**26 elements, LayerNorm of bfloat16 from the saved input, as fractions of a copy that do
# not count the statistics. An aligned row consists of whole vectors.
# fmt: off
ALIGNED = (
    Reason(columns_up_to=8, why="0.90 of a copy at 8 columns, where the statistics are 8 of 56 bytes; pipelined: 0.15"),
    Reason(columns_up_to=32, why="0.92 of a copy at 32 columns; pipelined: 0.54"),
    Reason(columns_up_to=64, why="0.96 of a copy at 64 columns; pipelined: 0.92"),
    Reason(columns_up_to=127, why="1.05 of a copy at 96 columns; pipelined: 0.84"),
)
OTHERS = (
    Reason(columns_up_to=1, why="0.44 of a copy at one column, where the statistics are 8 of 14 bytes; fused: 0.01"),
    Reason(columns_up_to=8, why="0.86 of a copy at 5 columns, where the statistics are 8 of 38 bytes; fused: 0.04"),
    Reason(columns_up_to=32, why="0.99 of a copy at 31 columns; fused: 0.23"),
    Reason(columns_up_to=64, why="0.96 of a copy at 63 columns; fused: 0.38"),
    Reason(columns_up_to=127, why="1.02 of a copy at 100 columns; pipelined: 0.87"),
    Reason(columns_up_to=255, why="0.92 of a copy at 129 columns and 0.89 at 255; pipelined: 0.50 and 0.66"),
)
# fmt: on


def layout_for(n2: int, sizes: tuple[int, int, int], statistics: int) -> Chosen | None:
    """Return the `TileLayout` of rows of n2 columns and why it is taken; None if the rows are too long.

    One asynchronous copy moves as many elements as have 16 bytes in the widest dtype.

    sizes: bytes of an element of the saved array, of grad_output and of grad_input. statistics: as in the layout.
    """
    full = BYTES // max(sizes)
    reasons = [one.why for one in (OTHERS if n2 % full else ALIGNED) if n2 <= one.columns_up_to]
    if not reasons or (max(sizes) == 4 and n2 > LONGEST_OF_32_BITS):
        return None
    each = -(-n2 // lanes_for(n2))
    # No wider than leaves no lane idle. 72 columns: 0.97 of a copy, in whole vectors 0.90.
    return Chosen(tile_for(n2, min(full, n2 & -n2, each & -each), sizes, statistics, STAGE_BYTES), reasons[0])


def with_larger_tiles(layout: TileLayout, shared_bytes: int) -> TileLayout:
    """Return the layout for many rows, in blocks with so much shared memory. A row has the same bits."""
    larger = layout._replace(turns=2 * layout.turns)
    fits = larger.stage_bytes <= MOST_BYTES[layout.lanes == WARP] and larger.shared_bytes <= shared_bytes
    return with_larger_tiles(larger, shared_bytes) if fits and layout.turns < layout.apart else layout
