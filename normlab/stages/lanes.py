"""Map the lanes of a warp, the threads of a block and the blocks of a grid to rectangles of the product's C.

Lanes that lie in one row of C read the same elements of A, and shared memory answers equal addresses once. Blocks that
run at the same time and lie near each other in C read the same parts of A and B, which L2 then holds once.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda


@cache
def lanes_in_rows(down: int) -> Any:
    """Return the device function `place(lane) -> (row, column)` for `down` rows of 32 / down lanes."""
    across = 32 // down  # a constant: the compiler makes a shift of the division by a power of two

    @cuda.jit(device=True)
    def place(lane):
        return lane // across, lane % across

    return place


@cuda.jit(device=True)
def lanes_in_z_order(lane):
    """Return (row, column) of a lane in a rectangle of 4 x 8 lanes: Z-order.

    Every 4 consecutive lanes fill a square of 2 x 2, and every 16 a square of 4 x 4.
    """
    # the lane's bits go to column and row in turn, column first: bits 0, 2, 4 and bits 1, 3
    column = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4)
    row = (lane >> 1 & 1) | (lane >> 2 & 2)
    return row, column


@cuda.jit(device=True)
def blocks_in_rows(block, down, across):
    """Return (row, column) of a block in a grid of down x across, one row of blocks after another."""
    return block // across, block % across


@cache
def blocks_in_bands(height: int) -> Any:
    """Return the device function `place(block, down, across) -> (row, column)` for bands of `height` rows of blocks.

    Within a band the blocks go down one column and then down the next. Blocks that run at the same time then fill a
    rectangle that is nearly a square, and a square has the fewest rows of A and columns of B for its area.
    """

    @cuda.jit(device=True)
    def place(block, down, across):
        # blocks start in the order of their index, so consecutive indices run at the same time
        band = block // (height * across)
        within = block - band * height * across
        rows = min(height, down - band * height)  # the last band may have fewer rows
        return band * height + within % rows, within // rows

    return place


@cache
def threads_in_rows(across: int, side: int) -> Any:
    """Return the device function `place(thread) -> (row, column)` for rows of `across` threads.

    Each thread has side x side elements of C; row and column are those of its first element.
    """

    @cuda.jit(device=True)
    def place(thread):
        # neighbouring threads have neighbouring squares of C, so they read the same rows of A
        return thread // across * side, thread % across * side

    return place


@cache
def warps_in_rows(across: int, rows: int, columns: int, side: int, lane_place: Any) -> Any:
    """Return the device function `place(thread) -> (row, column)` for rows of `across` warps.

    Each warp has rows x columns elements of C. Within a warp, `lane_place(lane)` returns the lane's row and column of
    lanes; the first elements of neighbouring lanes are `side` apart.
    """

    @cuda.jit(device=True)
    def place(thread):
        warp = thread // 32  # the warp's rectangle first, then the lane's elements within it
        row, column = lane_place(thread % 32)  # in units of `side` elements
        return warp // across * rows + row * side, warp % across * columns + column * side

    return place
