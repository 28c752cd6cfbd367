"""budget: asks every lane in turn, which is right and takes 32 shuffles.

Says: at most 6 allowed
"""


def warp_sum(value):
    total = float(0)
    for source in range(32):
        total += cuda.shfl_sync(0xFFFFFFFF, value, source)
    return total
