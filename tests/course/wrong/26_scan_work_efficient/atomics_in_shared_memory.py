"""budget: each thread adds its elements to all sums after them, by atomic operations.

Says: accesses of shared memory by
"""


def scan(x, y):
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    for column in range(thread, 128, 64):
        line[column] = 0
    cuda.syncthreads()
    for column in range(thread, x.shape[1], 64):
        value = x[row, column]
        for after in range(column, x.shape[1]):
            cuda.atomic.add(line, after, value)
    cuda.syncthreads()
    for column in range(thread, x.shape[1], 64):
        y[row, column] = line[column]
