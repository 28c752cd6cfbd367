"""5 · 32 lanes, one sum, and the same bits everywhere: the butterfly."""


def warp_sum(value):
    # Your lines.
    for level in range(5):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level)
    return value
