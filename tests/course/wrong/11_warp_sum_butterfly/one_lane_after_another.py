"""budget: asks every lane in turn, which is right and takes 32 shuffles.

Says: exactly 6 needed
"""


def warp_sum(value):
    total = float(0)
    for source in range(32):
        total += cuda.shfl_sync(0xFFFFFFFF, value, source)
    return total
