"""Any five steps will do here."""


def warp_sum(value, lane):
    distance = 1
    while distance < 32:
        value = value + cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
        distance *= 2
    return value
