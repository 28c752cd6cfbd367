"""values: Blelloch's scan leaves out the own element.

Says: y[0, 0]
"""


def scan(x, y):
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    for column in range(thread, 128, 64):
        line[column] = x[row, column] if column < x.shape[1] else float32(0)
    for level in range(6):
        cuda.syncthreads()
        end = (2 << level) * (thread + 1) - 1
        if end < 128:
            line[end] += line[end - (1 << level)]
    cuda.syncthreads()
    if thread == 0:
        line[127] = 0
    for level in range(6, -1, -1):
        cuda.syncthreads()
        end = (2 << level) * (thread + 1) - 1
        if end < 128:
            left = line[end - (1 << level)]
            line[end - (1 << level)] = line[end]
            line[end] += left
    cuda.syncthreads()
    for column in range(thread, x.shape[1], 64):
        y[row, column] = line[column]
