"""10 · 32 lanes, one sum: the rotation.

The 32 threads of a warp are called lanes, and they can read each other's variables without any
memory:

    other = cuda.shfl_sync(0xFFFFFFFF, value, source)

gives each lane the `value` that lane `source` brings (each lane may ask for another one). All lanes
named in the mask, here all 32, have to come to the same shuffle together.

Let each lane add what lane + 1 has (lane 31 reads from lane 0): now each holds the sum of 2 lanes.
Then what lane + 2 has by now: the sum of 4. Then lane + 4, + 8, + 16. After five steps lane 0 holds
the sum of all 32. In NumPy:

    for distance in (1, 2, 4, 8, 16):
        v = v + np.roll(v, -distance)

Checked: right sums; 5 shuffles a warp.

To write: about 4 lines.

Tutorial: normlab tutorials 4. Next: exercise 11, warp_sum_butterfly.
"""

from normlab.engine import cuda


@cuda.jit(device=True)
def warp_sum(value, lane):
    """Return the sum of all lanes' `value`; what lane 0 gets is used. `lane` is the number of the calling lane."""
    # Your lines.
    for level in range(5):
        source = (lane + (1 << level)) & 31
        value += cuda.shfl_sync(0xFFFFFFFF, value, source)
    return value


@cuda.jit
def sum_rows(x, sums):
    """A warp, which is the block, per row: x is (rows, 32), sums is (rows,)."""
    row = cuda.blockIdx.x
    lane = cuda.threadIdx.x
    total = warp_sum(x[row, lane], lane)
    if lane == 0:
        sums[row] = total
