"""values: any number of the row would do, if float32 had no largest number."""


def merge(maximum_a, total_a, maximum_b, total_b):
    return maximum_a, total_a + total_b


def softmax(x, y):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    columns = x.shape[1]
    maximum = float32(-math.inf)
    total = float32(0)
    first = x[row, 0]
    for column in range(cuda.threadIdx.x, columns, 64):
        total += math.exp(x[row, column] - first)
    for level in range(5):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> level)
    if cuda.threadIdx.x % 32 == 0:
        buffer[cuda.threadIdx.x // 32, 1] = total
    cuda.syncthreads()
    total = buffer[0, 1] + buffer[1, 1]
    for column in range(cuda.threadIdx.x, columns, 64):
        y[row, column] = math.exp(x[row, column] - first) / total
