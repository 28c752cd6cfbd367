"""budget: one of the two warps takes the whole row.

Says: let all threads share the work
"""


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
    if cuda.threadIdx.x < 32:
        for column in range(cuda.threadIdx.x, columns, 32):
            maximum, total = merge(maximum, total, x[row, column], float32(1))
        for level in range(5):
            maximum_b = cuda.shfl_xor_sync(0xFFFFFFFF, maximum, 16 >> level)
            total_b = cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> level)
            maximum, total = merge(maximum, total, maximum_b, total_b)
        for column in range(cuda.threadIdx.x, columns, 32):
            y[row, column] = math.exp(x[row, column] - maximum) / total
