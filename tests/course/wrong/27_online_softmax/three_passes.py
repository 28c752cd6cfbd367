"""budget: the row is read for the maximum, for the sum and for the result.

Says: one pass for both statistics
"""


def merge(maximum_a, total_a, maximum_b, total_b):
    return max(maximum_a, maximum_b), total_a + total_b


def softmax(x, y):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    columns = x.shape[1]
    maximum = float32(-math.inf)
    total = float32(0)
    thread = cuda.threadIdx.x
    for column in range(thread, columns, 64):
        maximum = max(maximum, x[row, column])
    for level in range(5):
        maximum = max(maximum, cuda.shfl_xor_sync(0xFFFFFFFF, maximum, 16 >> level))
    if thread % 32 == 0:
        buffer[thread // 32, 0] = maximum
    cuda.syncthreads()
    maximum = max(buffer[0, 0], buffer[1, 0])
    for column in range(thread, columns, 64):
        total += math.exp(x[row, column] - maximum)
    for level in range(5):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> level)
    if thread % 32 == 0:
        buffer[thread // 32, 1] = total
    cuda.syncthreads()
    total = buffer[0, 1] + buffer[1, 1]
    for column in range(thread, columns, 64):
        y[row, column] = math.exp(x[row, column] - maximum) / total
