"""values: five steps are enough for a warp, not for a block.

Says: columns = 33
"""


def scan(x, y):
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    value = float32(0)
    if column < x.shape[1]:
        value = x[row, column]
    for level in range(5):
        lines[level % 2, column] = value
        cuda.syncthreads()
        if column >= 1 << level:
            value += lines[level % 2, column - (1 << level)]
    if column < x.shape[1]:
        y[row, column] = value
