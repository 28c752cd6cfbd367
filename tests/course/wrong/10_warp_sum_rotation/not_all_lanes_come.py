"""shuffle-mask: only half of the lanes come to a shuffle that names all.

Says: does not come to this call
"""


def warp_sum(value, lane):
    for level in range(5):
        distance = 16 >> level
        if lane < distance:
            value += cuda.shfl_sync(0xFFFFFFFF, value, lane + distance)
    return value
