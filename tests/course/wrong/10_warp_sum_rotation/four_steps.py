"""values: stops a step too early, at 16 lanes.

Says: sums[0]: expected 3.2
"""


def warp_sum(value, lane):
    for level in range(4):
        value += cuda.shfl_sync(0xFFFFFFFF, value, (lane + (1 << level)) & 31)
    return value
