"""Columns of a row-major matrix, summed without wasting memory traffic: strided loads into a padded tile.

grad_weight and grad_bias are sums down columns. A warp that walked down one column would use 4 of the 32 bytes of every
sector it fetches. Instead the block loads a tile of 16 rows x 32 columns, each thread four neighbouring elements of
one row, lays it into shared memory, and sums the tile's columns from there.

A tile row is 33 words long, not 32. The 32 lanes of a warp write four tile rows, eight lanes each, every fourth word.
With rows of 32 words the four rows would fall on the same eight banks, four lanes a bank; the odd stride shifts each
row by one bank, and the 32 lanes hit 32 banks.

apex: cuLoadWriteStridedInputs, cuLoadAddStridedInputs. Block: 32 x 4 threads.
"""

from normlab.engine import cast, cuda, load
from normlab.stages.recompute import normalised

COLUMNS = 32
WARPS = 4
ROWS = WARPS * WARPS  # a thread covers WARPS columns, so 32 x 4 threads cover 16 rows
TILE_STRIDE = COLUMNS + 1


@cuda.jit(device=True)
def tile_row():
    """The row of the tile that this thread loads."""
    return cuda.threadIdx.x * WARPS // COLUMNS + cuda.threadIdx.y * WARPS


@cuda.jit(device=True)
def tile_column():
    """The first of the WARPS neighbouring columns of the tile that this thread loads."""
    return cuda.threadIdx.x * WARPS & (COLUMNS - 1)


@cuda.jit(device=True)
def column_terms(row, column, row_end, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient):
    """What one element adds to its column's sums: grad_output for grad_bias, grad_output x̂ for grad_weight.

    Zeros outside the matrix and from row_end on. Other arguments as `normalised`.
    """
    if row < row_end and column < saved.shape[1]:
        grad = load(grad_output, (row, column))
        return grad, grad * normalised(saved, row, column, mean, invvar, weight, bias, eps, memory_efficient)
    return cast(0, invvar), cast(0, invvar)


@cuda.jit(device=True)
def load_write_strided(
    first_row, row_end, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient, tile_bias, tile_weight
):
    """Write a block's first tile of column terms (apex: cuLoadWriteStridedInputs).

    Args:
        first_row, row_end: the tile starts at first_row; rows from row_end on belong to somebody else.
        grad_output, saved: (n1, n2). mean, invvar: (n1,). weight, bias: (n2,) or None. eps: accumulator dtype.
        memory_efficient: `saved` is the output, else the input.
        tile_bias, tile_weight: shared, (ROWS, TILE_STRIDE), accumulator dtype; every element of ROWS x COLUMNS is
            written.
    """
    y = tile_row()
    for x in range(tile_column(), tile_column() + WARPS):
        grad, product = column_terms(
            first_row + y, cuda.blockIdx.x * COLUMNS + x, row_end,
            grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient,
        )  # fmt: skip
        tile_bias[y, x] = grad
        tile_weight[y, x] = product


@cuda.jit(device=True)
def load_add_strided(
    first_row, row_end, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient, tile_bias, tile_weight
):
    """Add a further tile to the first (apex: cuLoadAddStridedInputs). Arguments as `load_write_strided`.

    Each thread adds to the elements that it wrote itself, so no barrier is needed in between.
    """
    y = tile_row()
    for x in range(tile_column(), tile_column() + WARPS):
        grad, product = column_terms(
            first_row + y, cuda.blockIdx.x * COLUMNS + x, row_end,
            grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient,
        )  # fmt: skip
        tile_bias[y, x] += grad
        tile_weight[y, x] += product
