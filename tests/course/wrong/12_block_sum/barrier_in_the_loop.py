"""budget: a barrier in every turn of the loop mends it, and makes all wait each time.

Says: barriers, at most 4 allowed
"""


def block_sum(value, buffer):
    value = warp_sum_butterfly(value)
    if lane_index() == 0:
        buffer[warp_index()] = value
    cuda.syncthreads()
    total = float32(0)
    for warp in range(warp_count()):
        total += buffer[warp]
        cuda.syncthreads()
    return total
