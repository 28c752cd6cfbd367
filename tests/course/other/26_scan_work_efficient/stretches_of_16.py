"""Eight threads add up stretches of 16 elements; then each thread adds the sums of the stretches before its own."""


@cuda.jit
def scan(x, y):
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    n = x.shape[1]
    for c in range(thread, 128, 64):
        line[c] = x[row, c] if c < n else float32(0)
    cuda.syncthreads()
    if thread < 8:
        for k in range(1, 16):
            line[16 * thread + k] += line[16 * thread + k - 1]
    cuda.syncthreads()
    add = float32(0)
    for k in range(0, thread // 16):
        add += line[16 * k + 15]
    add2 = float32(0)
    for k in range(0, 4 + thread // 16):
        add2 += line[16 * k + 15]
    if thread < n:
        y[row, thread] = line[thread] + add
    if thread + 64 < n:
        y[row, thread + 64] = line[thread + 64] + add2
