"""No shuffles: a tree over 64 pairs in shared memory."""


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
    maxima = cuda.shared.array(64, float32)
    totals = cuda.shared.array(64, float32)
    thread = cuda.threadIdx.x
    for column in range(thread, columns, 64):
        maximum, total = merge(maximum, total, x[row, column], float32(1))
    maxima[thread] = maximum
    totals[thread] = total
    working = 32
    while working > 0:
        cuda.syncthreads()
        if thread < working:
            maximum, total = merge(maximum, total, maxima[thread + working], totals[thread + working])
            maxima[thread] = maximum
            totals[thread] = total
        working //= 2
    cuda.syncthreads()
    maximum = maxima[0]
    total = totals[0]
    for column in range(thread, columns, 64):
        y[row, column] = math.exp(x[row, column] - maximum) / total
