"""13 · Mean and variance of a row, by a whole block.

All the pieces are there: welford_step takes a value into a thread's (mean, m2, count), warp_moments
merges those of a warp's lanes, block_moments those of a block's warps. Put them together, as NVIDIA
apex's LayerNorm does: first each thread goes through its share of the row, then the warp merges,
then the block.

    welford_step(value, mean, m2, count) → mean, m2, count
    warp_moments(mean, m2, count)        → mean, m2, count       right in lane 0
    block_moments(mean, m2, count, buffer) → mean, m2, count     right in every thread

`buffer` is the shared memory in which block_moments lets the warps meet.

Who takes which columns? When lanes of a warp read at the same time, the memory fetches sectors of
32 bytes, 8 float32. So neighbouring lanes should read neighbouring columns: thread t takes columns
t, t + threads, t + 2 threads, ….

Checked: right for any number of columns; on 1 row of 256 columns 8 loads and 32 sectors, the fewest
possible, and no thread that touches more than 6 elements of global memory.

To write: about 4 lines.

Tutorial: normlab tutorials 6. Next: exercise 14, layer_norm.
"""

from normlab.engine import cuda, float32
from normlab.stages.block import block_moments
from normlab.stages.moments import welford_step
from normlab.stages.warp import warp_moments


@cuda.jit
def row_moments(x, means, variances):
    """A block of 64 threads per row: x is (rows, columns), means and (biased) variances are (rows,)."""
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean = float32(0)
    m2 = float32(0)
    count = float32(0)
    # Your lines.
    if cuda.threadIdx.x == 0:
        means[row] = mean
        variances[row] = m2 / count
