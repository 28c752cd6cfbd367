"""21 · A puzzle: every sector once.

x has rows of 32 float32, and a warp is to sum 32 of these rows: sums[row] = x[row].sum(). That is
easy: lane i walks along row i. But at each step the 32 lanes then read 32 elements that are 128
bytes apart, each from a sector of its own, and of every 32 bytes that are fetched 4 are used.

The budget for 32 rows is 128 sectors of loads, which is every sector once, and 4 of stores, which
is one store of all 32 sums together. What should the lanes read together, and how do they get from
there to a sum that lane i can store?

warp_sum_butterfly(value) gives every lane the sum of the 32 lanes' values. All 32 lanes have to
call it together, also where there are fewer than 32 rows left.

Checked: right for any number of rows; 128 sectors loaded and 4 stored on 32 rows.

To write: about 8 lines.

Tutorial: normlab tutorials 4. Next: exercise 22, vector_copy.
"""

from normlab.engine import cuda, float32
from normlab.stages.warp import warp_sum_butterfly


@cuda.jit
def sum_rows(x, sums):
    """A warp, which is the block, for each 32 rows: x is (rows, 32), sums is (rows,)."""
    lane = cuda.threadIdx.x
    first_row = cuda.blockIdx.x * 32
    # Your lines.
    own = float32(0)
    for row in range(32):
        value = float32(0)
        if first_row + row < x.shape[0]:
            value = x[first_row + row, lane]
        total = warp_sum_butterfly(value)
        if lane == row:
            own = total
    if first_row + lane < x.shape[0]:
        sums[first_row + lane] = own
