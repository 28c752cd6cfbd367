"""budget: lane 0 does it all.

Says: loaded by one thread
"""


def sum_rows(x, sums):
    lane = cuda.threadIdx.x
    first_row = cuda.blockIdx.x * 32
    if lane == 0:
        for row in range(first_row, min(first_row + 32, x.shape[0])):
            total = float32(0)
            for column in range(32):
                total += x[row, column]
            sums[row] = total
