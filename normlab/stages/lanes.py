"""How the 32 lanes of a warp stand in a rectangle of C, and how the blocks of a grid do.

What lanes stand beside each other decides how much of a warp's shared loads is the same address, which the memory gives
once; what blocks run at the same time decides how much of A and B they share in L2.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda


@cache
def lanes_in_rows(down: int) -> Any:
    """The device function `place(lane) -> (row, column)`: rows of 32 / down lanes, `down` of them."""
    across = 32 // down

    @cuda.jit(device=True)
    def place(lane):
        return lane // across, lane % across

    return place


@cuda.jit(device=True)
def lanes_in_z_order(lane):
    """(row, column) of a lane in 4 x 8 of them: its bits go to column and row in turn, column first.

    Of any four neighbouring lanes two share a row of C and two a column, and so on for the next larger groups.
    """
    column = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4)
    row = (lane >> 1 & 1) | (lane >> 2 & 2)
    return row, column


@cuda.jit(device=True)
def blocks_in_rows(block, down, across):
    """(row, column) of a block in a grid of down x across: one row of blocks after another."""
    return block // across, block % across


@cache
def blocks_in_bands(height: int) -> Any:
    """The device function `place(block, down, across) -> (row, column)`: in bands of so many rows of blocks.

    Within a band the blocks go down a column, then on to the next, so that those that run at the same time stand in
    something like a square. The last band may be lower.
    """

    @cuda.jit(device=True)
    def place(block, down, across):
        band = block // (height * across)
        within = block - band * height * across
        rows = min(height, down - band * height)
        return band * height + within % rows, within // rows

    return place


@cache
def threads_in_rows(across: int, side: int) -> Any:
    """The device function `place(thread) -> (row, column)`: rows of `across` threads, side x side elements each."""

    @cuda.jit(device=True)
    def place(thread):
        return thread // across * side, thread % across * side

    return place


@cache
def warps_in_rows(across: int, rows: int, columns: int, side: int, lane_place: Any) -> Any:
    """The device function `place(thread) -> (row, column)`: rows of `across` warps, each with rows x columns elements.

    Within a warp, `lane_place` says where a lane stands among the others; the first elements of neighbours are `side`
    apart.
    """

    @cuda.jit(device=True)
    def place(thread):
        warp = thread // 32
        row, column = lane_place(thread % 32)
        return warp // across * rows + row * side, warp % across * columns + column * side

    return place
