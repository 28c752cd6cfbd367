"""9 · A group with nothing in it.

A row is dealt to the 32 lanes of a warp: lane 0 gets columns 0, 32, 64, …, lane 1 gets columns 1,
33, …. Where the row has fewer than 32 columns some lanes get nothing: their mean, m2 and count are
0. Then the lanes merge their groups, and somewhere two empty groups meet: count is 0, and count_b /
count is 0 / 0. That is NaN, and NaN spreads.

The merge below is right for all other groups, also where one of the two is empty. Mend it for the
case that is left: two empty groups together are an empty group.

Checked: right in every lane, for rows of any length.

To write: 2 lines, above the division.

Tutorial: normlab tutorials 3. Next: exercise 10, warp_sum_rotation.
"""

from normlab.engine import cuda, float32
from normlab.stages.moments import welford_step


@cuda.jit(device=True)
def merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Return (mean, m2, count) of groups a and b together."""
    count = count_a + count_b
    # Your lines.
    delta = mean_b - mean_a
    share_b = count_b / count
    return mean_a + delta * share_b, m2_a + m2_b + delta * delta * count_a * share_b, count


@cuda.jit
def warp_moments(x, means, variances):
    """A warp, which is the block, per row: x is (rows, columns); means and variances are (rows, 32), all lanes'."""
    row = cuda.blockIdx.x
    lane = cuda.threadIdx.x
    mean = float32(0)
    m2 = float32(0)
    count = float32(0)
    for column in range(lane, x.shape[1], 32):
        mean, m2, count = welford_step(x[row, column], mean, m2, count)
    for level in range(5):
        source = (lane + (1 << level)) & 31
        mean_b = cuda.shfl_sync(0xFFFFFFFF, mean, source)
        m2_b = cuda.shfl_sync(0xFFFFFFFF, m2, source)
        count_b = cuda.shfl_sync(0xFFFFFFFF, count, source)
        mean, m2, count = merge(mean, m2, count, mean_b, m2_b, count_b)
    means[row, lane] = mean
    variances[row, lane] = m2 / count
