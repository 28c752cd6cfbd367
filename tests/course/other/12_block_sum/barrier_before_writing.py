"""All have read the last row when all have come here."""


def block_sum(value, buffer):
    value = warp_sum_butterfly(value)
    cuda.syncthreads()
    if lane_index() == 0:
        buffer[warp_index()] = value
    cuda.syncthreads()
    total = float32(0)
    for warp in range(warp_count()):
        total += buffer[warp]
    return total
