"""budget: right with one line, and twice as many barriers as two lines need.

Says: barriers
"""


def scan(x, y):
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    value = float32(0)
    if column < x.shape[1]:
        value = x[row, column]
    for level in range(6):
        lines[0, column] = value
        cuda.syncthreads()
        if column >= 1 << level:
            value += lines[0, column - (1 << level)]
        cuda.syncthreads()
    if column < x.shape[1]:
        y[row, column] = value
