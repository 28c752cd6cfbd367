"""budget: shuffles, but one for each of 32 lanes.

Says: exchanges of warps
"""


def scan(x, y):
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    value = float32(0)
    if column < x.shape[1]:
        value = x[row, column]
    total = float32(0)
    for lane in range(32):
        other = cuda.shfl_sync(0xFFFFFFFF, value, lane)
        if lane <= column % 32:
            total += other
    if column == 31:
        lines[0, 0] = total
    cuda.syncthreads()
    if column >= 32:
        total += lines[0, 0]
    if column < x.shape[1]:
        y[row, column] = total
