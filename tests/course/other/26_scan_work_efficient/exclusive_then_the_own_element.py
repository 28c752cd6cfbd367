"""Blelloch's exclusive scan, with the root set to 0 and sums exchanged on the way down; each adds its own elements."""


def scan(x, y):
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    columns = x.shape[1]
    low = x[row, thread] if thread < columns else float32(0)
    high = x[row, thread + 64] if thread + 64 < columns else float32(0)
    line[thread] = low
    line[thread + 64] = high
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
    if thread < columns:
        y[row, thread] = line[thread] + low
    if thread + 64 < columns:
        y[row, thread + 64] = line[thread + 64] + high
