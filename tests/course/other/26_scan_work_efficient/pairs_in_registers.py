"""A thread keeps the sum of its pair in a register: a tree of 64 pairs, and the elements only in and out."""


def scan(x, y):
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    for column in range(thread, 128, 64):
        line[column] = x[row, column] if column < x.shape[1] else float32(0)
    cuda.syncthreads()
    right = line[2 * thread + 1]
    line[2 * thread + 1] = line[2 * thread] + right
    distance = 2
    while distance < 128:
        cuda.syncthreads()
        if thread < 64 // distance:
            end = 2 * distance * (thread + 1) - 1
            line[end] += line[end - distance]
        distance *= 2
    distance = 32
    while distance > 1:
        cuda.syncthreads()
        if thread < 64 // distance - 1:
            end = 2 * distance * (thread + 1) + distance - 1
            line[end] += line[end - distance]
        distance //= 2
    cuda.syncthreads()
    if thread > 0:
        line[2 * thread] += line[2 * thread - 1]
    cuda.syncthreads()
    for column in range(thread, x.shape[1], 64):
        y[row, column] = line[column]
