"""A block computes the statistics of one row: thread -> warp -> block (apex: cuWelfordMuSigma2).

Composed of the stages below it; the first place where they all meet. Called by the apex forward kernel.
"""

from normlab.engine import cast, cuda, load
from normlab.stages.block import block_moments, block_sum
from normlab.stages.moments import rms_step, welford_step
from normlab.stages.warp import thread_index, warp_moments, warp_sum

STEP = 4  # neighbouring elements a thread takes at a time, as apex does: a 16-byte load's worth of float32


@cuda.jit(device=True)
def row_moments(x, row, buffer):
    """Mean and biased variance of one row.

    Thread t takes elements 4t to 4t+3, then those 4 x (threads of the block) further on; at the end of a row whose
    length is no multiple of four, one thread takes what is left.

    Args:
        x: (n1, n2), any floating dtype.
        row: which row.
        buffer: shared, (3, warps), of the accumulator's dtype (float32, or float64 for float64 input).

    Returns: (mean, variance) in every thread of the block.
    """
    mean = cast(0, buffer)
    m2 = cast(0, buffer)
    count = cast(0, buffer)
    n2 = x.shape[1]
    stride = STEP * cuda.blockDim.x * cuda.blockDim.y
    column = STEP * thread_index()
    while column + STEP <= n2:
        for k in range(STEP):
            mean, m2, count = welford_step(load(x, (row, column + k)), mean, m2, count)
        column += stride
    while column < n2:  # only the thread whose step the row's end cuts short
        mean, m2, count = welford_step(load(x, (row, column)), mean, m2, count)
        column += 1
    mean, m2, count = warp_moments(mean, m2, count)
    mean, m2, count = block_moments(mean, m2, count, buffer)
    return mean, m2 / count


@cuda.jit(device=True)
def row_mean_square(x, row, buffer):
    """Mean of the squares of one row (the RMS branch). Arguments as `row_moments`; buffer: shared, (2, warps)."""
    square_sum = cast(0, buffer)
    n2 = x.shape[1]
    stride = STEP * cuda.blockDim.x * cuda.blockDim.y
    column = STEP * thread_index()
    while column + STEP <= n2:
        for k in range(STEP):
            square_sum = rms_step(load(x, (row, column + k)), square_sum)
        column += stride
    while column < n2:  # only the thread whose step the row's end cuts short
        square_sum = rms_step(load(x, (row, column)), square_sum)
        column += 1
    square_sum = block_sum(warp_sum(square_sum), buffer)
    return square_sum / cast(n2, buffer)
