"""Load tiles of a row-major matrix into padded shared memory, to sum its columns without wasting memory traffic.

grad_weight and grad_bias are sums down columns. A warp that walked down one column would use 4 of the 32 bytes of every
sector that it fetches. Instead each block loads a tile of 16 rows x 32 columns into shared memory, where each thread
loads four neighbouring elements of one row, and then sums the tile's columns.

A tile row is 33 words long, not 32. The 32 lanes of a warp write four tile rows, with eight lanes per row, which write
every fourth word. With rows of 32 words the four rows would fall on the same eight banks, four lanes per bank. The odd
stride shifts each row by one bank, and the 32 lanes write to 32 banks.

apex: cuLoadWriteStridedInputs, cuLoadAddStridedInputs. Block: 32 x 4 threads.
"""

from normlab.engine import cast, cuda, load
from normlab.stages.recompute import normalised

COLUMNS = 32
WARPS = 4
ROWS = WARPS * WARPS  # a thread covers WARPS columns, so 32 x 4 threads cover 16 rows
TILE_STRIDE = COLUMNS + 1  # odd: four rows of a tile then begin in four different banks


@cuda.jit(device=True)
def tile_row():
    """Return the row of the tile that this thread loads."""
    return cuda.threadIdx.x * WARPS // COLUMNS + cuda.threadIdx.y * WARPS


@cuda.jit(device=True)
def tile_column():
    """Return the first of the WARPS neighbouring columns of the tile that this thread loads."""
    return cuda.threadIdx.x * WARPS & (COLUMNS - 1)  # eight lanes cover the 32 columns of a row


@cuda.jit(device=True)
def column_terms(row, column, row_end, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient):
    """Return one element's terms of its column's sums: grad_output for grad_bias, grad_output x̂ for grad_weight.

    Both are 0 outside the matrix and from row_end on. Other arguments are as for `normalised`.
    """
    if row < row_end and column < saved.shape[1]:
        grad = load(grad_output, (row, column))
        return grad, grad * normalised(saved, row, column, mean, invvar, weight, bias, eps, memory_efficient)
    return cast(0, invvar), cast(0, invvar)  # the tile is summed as a whole: 0 adds nothing


@cuda.jit(device=True)
def load_write_strided(
    first_row, row_end, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient, tile_bias, tile_weight
):
    """Write a block's first tile of column terms (apex: cuLoadWriteStridedInputs).

    Args:
        first_row, row_end: the tile begins at first_row; rows from row_end on belong to another block.
        grad_output, saved: (n1, n2). mean, invvar: (n1,). weight, bias: (n2,) or None. eps: accumulator dtype.
        memory_efficient: `saved` is the output if true, else the input.
        tile_bias, tile_weight: shared, (ROWS, TILE_STRIDE), accumulator dtype; every element of ROWS x COLUMNS is
            written.
    """
    y = tile_row()  # the same elements in every tile, so a thread only ever adds to its own
    for x in range(tile_column(), tile_column() + WARPS):
        grad, product = column_terms(
            first_row + y, cuda.blockIdx.x * COLUMNS + x, row_end,
            grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient,
        )  # fmt: skip
        # written, not added: the tile in shared memory has no defined contents yet
        tile_bias[y, x] = grad
        tile_weight[y, x] = product


@cuda.jit(device=True)
def load_add_strided(
    first_row, row_end, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient, tile_bias, tile_weight
):
    """Add a further tile to the first one (apex: cuLoadAddStridedInputs). Arguments as for `load_write_strided`."""
    y = tile_row()  # the same elements in every tile, so a thread only ever adds to its own
    for x in range(tile_column(), tile_column() + WARPS):
        grad, product = column_terms(
            first_row + y, cuda.blockIdx.x * COLUMNS + x, row_end,
            grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient,
        )  # fmt: skip
        # no barrier needed: each thread adds to the elements that it wrote itself
        tile_bias[y, x] += grad
        tile_weight[y, x] += product
