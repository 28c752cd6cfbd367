"""17 · A tile, turned round, without a traffic jam.

y = x.T sounds like a copy. But if neighbouring threads read neighbours in a row of x, they write
below each other in y: every one of 32 lanes then hits a sector of its own. The way out is a tile in
shared memory: read 32 x 32 elements of x row by row, lay them into the tile, wait, and write rows
of y, which are columns of the tile.

Shared memory has 32 banks of 4 bytes, and word number w is in bank w % 32. 32 lanes that want 32
banks are served at once; lanes that want different words of one bank wait for each other. In a tile
of 32 words a row a whole column is in one bank. What if a row of the tile were a word longer?

    tile = cuda.shared.array((32, 32), float32)        makes a shared array; its shape has to be constants

Checked: right for any shape; 4 sectors a load and a store where the shape is a multiple of 32; no
bank conflicts. The block has 32 x 8 threads, so each takes 4 elements of x and 4 of y.

To write: about 9 lines.

Tutorial: normlab tutorials 8. Next: exercise 18, grad_weight.
"""

from normlab.engine import cuda, float32


@cuda.jit
def transpose(x, y):
    """y = x.T: x (rows, columns), y (columns, rows). A block of 32 x 8 threads for each 32 x 32 elements of x."""
    column = cuda.threadIdx.x
    first_column = cuda.blockIdx.x * 32
    first_row = cuda.blockIdx.y * 32
    # Your lines.
