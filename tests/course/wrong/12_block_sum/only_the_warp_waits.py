"""race: a warp's barrier does not hold the other warps back.

Says: put cuda.syncthreads()
"""


def block_sum(value, buffer):
    value = warp_sum_butterfly(value)
    if lane_index() == 0:
        buffer[warp_index()] = value
    cuda.syncthreads()
    total = float32(0)
    for warp in range(warp_count()):
        total += buffer[warp]
    cuda.syncwarp()
    return total
