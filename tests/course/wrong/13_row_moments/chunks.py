"""budget: a thread's columns are neighbours, so the lanes' are not.

Says: sectors loaded, at most 40 allowed
"""


def row_moments(x, means, variances):
    buffer = cuda.shared.array((3, 2), float32)
    row = cuda.blockIdx.x
    mean = float32(0)
    m2 = float32(0)
    count = float32(0)
    share = (x.shape[1] + cuda.blockDim.x - 1) // cuda.blockDim.x
    first = cuda.threadIdx.x * share
    for column in range(first, min(first + share, x.shape[1])):
        mean, m2, count = welford_step(x[row, column], mean, m2, count)
    mean, m2, count = warp_moments(mean, m2, count)
    mean, m2, count = block_moments(mean, m2, count, buffer)
    if cuda.threadIdx.x == 0:
        means[row] = mean
        variances[row] = m2 / count
