"""out-of-bounds: in a late step most threads have no element to add for."""


def scan(x, y):
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    for column in range(thread, 128, 64):
        line[column] = x[row, column] if column < x.shape[1] else float32(0)
    for level in range(7):
        cuda.syncthreads()
        end = (2 << level) * (thread + 1) - 1
        line[end] += line[end - (1 << level)]
    for level in range(5, -1, -1):
        cuda.syncthreads()
        end = (2 << level) * (thread + 1) - 1 + (1 << level)
        line[end] += line[end - (1 << level)]
    cuda.syncthreads()
    for column in range(thread, x.shape[1], 64):
        y[row, column] = line[column]
