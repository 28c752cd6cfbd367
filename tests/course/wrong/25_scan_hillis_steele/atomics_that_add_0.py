"""budget: reads all elements before its own by atomic operations, as these are no loads.

Says: elements of global memory stored by one thread
"""


def scan(x, y):
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    if column < x.shape[1]:
        total = float32(0)
        for k in range(column + 1):
            total += cuda.atomic.add(x, (row, k), float32(0))
        y[row, column] = total
