"""One exponential a merge, and one division a thread."""


def merge(maximum_a, total_a, maximum_b, total_b):
    if maximum_a < maximum_b:
        return maximum_b, total_b + total_a * math.exp(maximum_a - maximum_b)
    if total_b == 0:
        return maximum_a, total_a
    return maximum_a, total_a + total_b * math.exp(maximum_b - maximum_a)


def softmax(x, y):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    columns = x.shape[1]
    maximum = float32(-math.inf)
    total = float32(0)
    lane = cuda.threadIdx.x & 31
    for column in range(cuda.threadIdx.x, columns, 64):
        if x[row, column] > -math.inf:
            maximum, total = merge(maximum, total, x[row, column], float32(1))
    for level in range(5):
        source = (lane + (1 << level)) & 31
        maximum_b = cuda.shfl_sync(0xFFFFFFFF, maximum, source)
        total_b = cuda.shfl_sync(0xFFFFFFFF, total, source)
        maximum, total = merge(maximum, total, maximum_b, total_b)
    if lane == 0:
        buffer[cuda.threadIdx.x >> 5, 0] = maximum
        buffer[cuda.threadIdx.x >> 5, 1] = total
    cuda.syncthreads()
    maximum, total = merge(buffer[0, 0], buffer[0, 1], buffer[1, 0], buffer[1, 1])
    share = math.nan
    if total > 0:
        share = 1 / total
    for column in range(cuda.threadIdx.x, columns, 64):
        y[row, column] = math.exp(x[row, column] - maximum) * float32(share)
