"""budget: every thread loads all elements before its own.

Says: elements of global memory loaded by one thread
"""


def scan(x, y):
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    if column < x.shape[1]:
        total = float32(0)
        for k in range(column + 1):
            total += x[row, k]
        y[row, column] = total
