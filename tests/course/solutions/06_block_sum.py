"""6 · From warps to a block: one barrier too few."""


def block_sum(value, buffer):
    value = warp_sum_butterfly(value)
    # Your line, if it belongs here.
    if lane_index() == 0:
        buffer[warp_index()] = value
    cuda.syncthreads()  # all sums are in shared memory before any of them is read
    total = float32(0)
    for warp in range(warp_count()):
        total += buffer[warp]
        # Your line, if it belongs here.
    # Your line, if it belongs here.
    cuda.syncthreads()  # all threads have read this row's sums before any warp leaves the next row's
    return total
