"""values: goes on by 1, 2, 3, 4, 5 lanes, so some are counted twice."""


def warp_sum(value, lane):
    for level in range(5):
        value += cuda.shfl_sync(0xFFFFFFFF, value, (lane + level + 1) & 31)
    return value + cuda.shfl_sync(0xFFFFFFFF, value, 31)
