"""shuffle-mask: names 16 lanes where 32 take part."""


def warp_sum(value, lane):
    for level in range(5):
        value += cuda.shfl_sync(0xFFFF, value, (lane + (1 << level)) & 31)
    return value
