"""24 · A matrix product, by tiles.

C = A @ B. A thread for each element of C could walk along a row of A and down a column of B, and
every element of A would be loaded once for each column of C. Let a block of 8 x 8 threads compute 8
x 8 elements of C together: it loads an 8 x 8 tile of A and one of B into shared memory, each thread
one element of each, and every element there is used 8 times. Then come the next two tiles, along
A's rows and down B's columns.

In NumPy, for the block at (row, column), with everything outside of the matrices as 0:

    for k in range(0, K, 8):
        total += A[row : row + 8, k : k + 8] @ B[k : k + 8, column : column + 8]

Two barriers: no thread multiplies before both tiles are there, and no thread lays down the next
tiles before all have multiplied. And all threads have to come to both, also those at the edges.

Checked: right for any shape; no races; 2 barriers for each pair of tiles; for matrices of 16 x 16
128 sectors loaded, and no thread that touches more than 5 elements of global memory.

To write: about 12 lines.

Tutorial: normlab tutorials 13. Next: exercise 25, scan_hillis_steele.
"""

from normlab.engine import cuda, float32

TILE = 8


@cuda.jit
def product(a, b, c):
    """c = a @ b: a (m, k), b (k, n), c (m, n). A block of TILE x TILE threads for each so many elements of c."""
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x = cuda.threadIdx.x
    y = cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + y
    column = cuda.blockIdx.x * TILE + x
    total = float32(0)
    # Your lines: through all tiles, first = 0, TILE, 2 TILE, … along a's rows and down b's columns.
    for first in range(0, a.shape[1], TILE):
        tile_a[y, x] = float32(0)
        tile_b[y, x] = float32(0)
        if row < a.shape[0] and first + x < a.shape[1]:
            tile_a[y, x] = a[row, first + x]
        if first + y < b.shape[0] and column < b.shape[1]:
            tile_b[y, x] = b[first + y, column]
        cuda.syncthreads()  # both tiles are there before anybody multiplies
        for k in range(TILE):
            total += tile_a[y, k] * tile_b[k, x]
        cuda.syncthreads()  # all have multiplied before the next tiles are laid down
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
