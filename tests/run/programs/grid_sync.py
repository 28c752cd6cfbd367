"""A recurrence over rows: each row needs its whole predecessor, so all blocks meet after every row."""

import numpy as np
from numba import cuda, int64, void

types = (int64[:, ::1],)


@cuda.jit(void(*types))
def rows_in_turn(m):
    column = cuda.grid(1)
    grid = cuda.cg.this_grid()
    for row in range(1, m.shape[0]):
        mirrored = m.shape[1] - 1 - column
        m[row, column] = m[row - 1, mirrored] + column
        grid.sync()  # the row is whole


overload = rows_in_turn.overloads[types]
threads = 32
blocks = 4
assert blocks <= overload.max_cooperative_grid_blocks(threads)
m = np.ones((9, blocks * threads), dtype=np.int64)
rows_in_turn[blocks, threads](m)
print("result:", m[-1, 0], m[-1, 5], m.sum(), overload.max_cooperative_grid_blocks((1024, 1)))
