"""Compute the statistics of one row by one block: thread -> warp -> block (apex: cuWelfordMuSigma2).

The apex forward kernel calls these stages, which combine `moments`, `warp` and `block`.
"""

from normlab.engine import cast, cuda, load
from normlab.stages.block import block_moments, block_sum
from normlab.stages.moments import rms_step, welford_step
from normlab.stages.warp import thread_index, warp_moments, warp_sum

STEP = 4  # neighbouring elements per thread and turn, as in apex: 16 bytes of float32


@cuda.jit(device=True)
def row_moments(x, row, buffer):
    """Return the mean and the biased variance of one row.

    Thread t takes elements 4t to 4t+3, then the four elements 4 x (threads per block) further on, and so on. If the
    row's length is no multiple of four, one thread takes the last one to three elements.

    Args:
        x: (n1, n2), any floating dtype.
        row: the row's index.
        buffer: shared, (3, warps), of the accumulator's dtype (float32, or float64 for float64 input).

    Returns: (mean, variance) in every thread of the block.
    """
    mean = cast(0, buffer)  # a bare 0 would be an integer, and the loop would change its dtype
    m2 = cast(0, buffer)
    count = cast(0, buffer)
    n2 = x.shape[1]
    stride = STEP * cuda.blockDim.x * cuda.blockDim.y
    column = STEP * thread_index()
    while column + STEP <= n2:
        for k in range(STEP):
            mean, m2, count = welford_step(load(x, (row, column + k)), mean, m2, count)
        column += stride
    while column < n2:  # the row ends within this thread's four elements
        mean, m2, count = welford_step(load(x, (row, column)), mean, m2, count)
        column += 1
    # 32 lanes merge by shuffles, the warps then through shared memory
    mean, m2, count = warp_moments(mean, m2, count)
    mean, m2, count = block_moments(mean, m2, count, buffer)
    return mean, m2 / count


@cuda.jit(device=True)
def row_mean_square(x, row, buffer):
    """Return the mean of one row's squares, for RMSNorm. Arguments as `row_moments`; buffer: shared, (2, warps)."""
    square_sum = cast(0, buffer)
    n2 = x.shape[1]
    stride = STEP * cuda.blockDim.x * cuda.blockDim.y
    column = STEP * thread_index()
    while column + STEP <= n2:
        for k in range(STEP):
            square_sum = rms_step(load(x, (row, column + k)), square_sum)
        column += stride
    while column < n2:  # the row ends within this thread's four elements
        square_sum = rms_step(load(x, (row, column)), square_sum)
        column += 1
    square_sum = block_sum(warp_sum(square_sum), buffer)
    return square_sum / cast(n2, buffer)
