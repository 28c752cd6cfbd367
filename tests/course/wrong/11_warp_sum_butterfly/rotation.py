"""values: a rotation, whose lanes differ in their last digits.

Says: differences[
"""


def warp_sum(value):
    lane = cuda.threadIdx.x
    for level in range(5):
        value += cuda.shfl_sync(0xFFFFFFFF, value, (lane + (1 << level)) & 31)
    return value
