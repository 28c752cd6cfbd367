"""values: neighbours never meet."""


def warp_sum(value):
    for level in range(4):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level)
    return value
