"""budget: asks every lane in turn, which is right and takes 32 shuffles.

Says: 32 shuffles, exactly 5 needed
"""


def warp_sum(value, lane):
    total = cuda.shfl_sync(0xFFFFFFFF, value, 0)
    for source in range(1, 32):
        total += cuda.shfl_sync(0xFFFFFFFF, value, source)
    return total
