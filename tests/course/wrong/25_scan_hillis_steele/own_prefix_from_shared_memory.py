"""budget: every thread adds up all elements before its own, in up to 64 steps.

Says: exchanges of warps
"""


def scan(x, y):
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    if column < x.shape[1]:
        lines[0, column] = x[row, column]
    cuda.syncthreads()
    if column < x.shape[1]:
        total = float32(0)
        for k in range(column + 1):
            total += lines[0, k]
        y[row, column] = total
