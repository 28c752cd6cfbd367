"""out-of-bounds: keeps the row in shared memory, and there are longer ones."""


def merge(maximum_a, total_a, maximum_b, total_b):
    maximum = max(maximum_a, maximum_b)
    if maximum == -math.inf:
        return maximum, float32(0)
    return maximum, total_a * math.exp(maximum_a - maximum) + total_b * math.exp(maximum_b - maximum)


def softmax(x, y):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    columns = x.shape[1]
    maximum = float32(-math.inf)
    total = float32(0)
    kept = cuda.shared.array(256, float32)
    for column in range(cuda.threadIdx.x, columns, 64):
        kept[column] = x[row, column]
        maximum, total = merge(maximum, total, kept[column], float32(1))
    for level in range(5):
        maximum_b = cuda.shfl_xor_sync(0xFFFFFFFF, maximum, 16 >> level)
        total_b = cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> level)
        maximum, total = merge(maximum, total, maximum_b, total_b)
    if cuda.threadIdx.x % 32 == 0:
        buffer[cuda.threadIdx.x // 32, 0] = maximum
        buffer[cuda.threadIdx.x // 32, 1] = total
    cuda.syncthreads()
    maximum, total = merge(buffer[0, 0], buffer[0, 1], buffer[1, 0], buffer[1, 1])
    for column in range(cuda.threadIdx.x, columns, 64):
        y[row, column] = math.exp(kept[column] - maximum) / total
