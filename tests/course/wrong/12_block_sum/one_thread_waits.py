"""barrier-divergence: a barrier that not all threads come to."""


def block_sum(value, buffer):
    value = warp_sum_butterfly(value)
    if lane_index() == 0:
        buffer[warp_index()] = value
    cuda.syncthreads()
    total = float32(0)
    for warp in range(warp_count()):
        total += buffer[warp]
    if lane_index() == 0:
        cuda.syncthreads()
    return total
