"""out-of-bounds: the number of rows is taken to be a multiple of 32."""


def sum_rows(x, sums):
    lane = cuda.threadIdx.x
    first_row = cuda.blockIdx.x * 32
    own = float32(0)
    for row in range(32):
        total = warp_sum_butterfly(x[first_row + row, lane])
        if lane == row:
            own = total
    sums[first_row + lane] = own
