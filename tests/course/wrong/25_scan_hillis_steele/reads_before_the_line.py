"""negative-index: the first threads have no thread so far before them."""


def scan(x, y):
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    value = float32(0)
    if column < x.shape[1]:
        value = x[row, column]
    for level in range(6):
        lines[level % 2, column] = value
        cuda.syncthreads()
        value += lines[level % 2, column - (1 << level)]
    if column < x.shape[1]:
        y[row, column] = value
