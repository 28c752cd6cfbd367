"""budget: every element adds in every step.

Says: accesses of shared memory by all threads together
"""


def scan(x, y):
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    low = float32(0)
    high = float32(0)
    if thread < x.shape[1]:
        low = x[row, thread]
    if thread + 64 < x.shape[1]:
        high = x[row, thread + 64]
    for level in range(7):
        distance = 1 << level
        line[thread] = low
        line[thread + 64] = high
        cuda.syncthreads()
        if thread >= distance:
            low += line[thread - distance]
        high += line[thread + 64 - distance]
        cuda.syncthreads()
    if thread < x.shape[1]:
        y[row, thread] = low
    if thread + 64 < x.shape[1]:
        y[row, thread + 64] = high
