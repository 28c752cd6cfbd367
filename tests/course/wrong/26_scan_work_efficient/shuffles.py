"""budget: few accesses, as the additions of Hillis and Steele go through registers.

Says: shuffles
"""


def scan(x, y):
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    low = x[row, thread] if thread < x.shape[1] else float32(0)
    high = x[row, thread + 64] if thread + 64 < x.shape[1] else float32(0)
    for level in range(5):
        low_before = cuda.shfl_up_sync(0xFFFFFFFF, low, 1 << level)
        high_before = cuda.shfl_up_sync(0xFFFFFFFF, high, 1 << level)
        if thread % 32 >= 1 << level:
            low += low_before
            high += high_before
    if thread % 32 == 31:
        line[thread // 32] = low
        line[thread // 32 + 2] = high
    cuda.syncthreads()
    if thread >= 32:
        low += line[0]
        high += line[2]
    if thread < x.shape[1]:
        y[row, thread] = low
    if thread + 64 < x.shape[1]:
        y[row, thread + 64] = high + (line[0] + line[1])
