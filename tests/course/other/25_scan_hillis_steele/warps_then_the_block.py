"""The lanes of a warp by shuffles; then the second warp adds the first one's total."""


def scan(x, y):
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    value = x[row, column] if column < x.shape[1] else float32(0)
    for level in range(5):
        before = cuda.shfl_up_sync(0xFFFFFFFF, value, 1 << level)
        if column % 32 >= 1 << level:
            value += before
    if column == 31:
        lines[0, 0] = value
    cuda.syncthreads()
    if column > 31:
        value += lines[0, 0]
    if column < x.shape[1]:
        y[row, column] = value
