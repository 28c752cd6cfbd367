"""15 · A puzzle: every sector once."""


def sum_rows(x, sums):
    lane = cuda.threadIdx.x
    first_row = cuda.blockIdx.x * 32
    # Your lines.
    own = float32(0)
    for row in range(32):
        value = float32(0)
        if first_row + row < x.shape[0]:
            value = x[first_row + row, lane]
        total = warp_sum_butterfly(value)
        if lane == row:
            own = total
    if first_row + lane < x.shape[0]:
        sums[first_row + lane] = own
