"""11 · 32 lanes, one sum, and the same bits everywhere: the butterfly.

After a rotation every lane holds a sum of all 32 values, but each has added them in another order,
and float32 rounds: the lanes differ in their last digits. If all lanes go on with the sum, that is
a trap.

In a butterfly lane i adds what lane i ^ 16 has (^ is "exclusive or", it flips one bit of the
number), then i ^ 8, 4, 2, 1:

    other = cuda.shfl_xor_sync(0xFFFFFFFF, value, 16)

Two lanes that exchange values add the same two numbers, and a + b is b + a to the last bit. So
after each step more lanes agree, and in the end all 32 do.

Checked: the right sum in every lane, equal bit by bit; 5 shuffles a warp (and 1 of the kernel).

To write: about 3 lines.

Tutorial: normlab tutorials 4. Next: exercise 12, block_sum.
"""

from normlab.engine import cuda


@cuda.jit(device=True)
def warp_sum(value):
    """Return the sum of all lanes' `value`, the same in every lane."""
    # Your lines.


@cuda.jit
def sum_rows(x, sums, differences):
    """A warp, which is the block, per row: x, sums and differences (of a lane's sum from lane 0's) are (rows, 32)."""
    row = cuda.blockIdx.x
    lane = cuda.threadIdx.x
    total = warp_sum(x[row, lane])
    sums[row, lane] = total
    differences[row, lane] = total - cuda.shfl_sync(0xFFFFFFFF, total, 0)
