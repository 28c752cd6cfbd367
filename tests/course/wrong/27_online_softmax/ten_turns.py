"""values: a thread takes 10 elements at most."""


@cuda.jit(device=True)
def merge(maximum_a, total_a, maximum_b, total_b):
    maximum = max(maximum_a, maximum_b)
    if maximum == -math.inf:
        return maximum, float32(0)
    return maximum, total_a * math.exp(maximum_a - maximum) + total_b * math.exp(maximum_b - maximum)


@cuda.jit
def softmax(x, y):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    columns = x.shape[1]
    maximum = float32(-math.inf)
    total = float32(0)
    for turn in range(10):
        column = cuda.threadIdx.x + 64 * turn
        if column < columns:
            maximum, total = merge(maximum, total, x[row, column], float32(1))
    for level in range(5):
        maximum_b = cuda.shfl_xor_sync(0xFFFFFFFF, maximum, 16 >> level)
        total_b = cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> level)
        maximum, total = merge(maximum, total, maximum_b, total_b)
    warp = cuda.threadIdx.x // 32
    if cuda.threadIdx.x % 32 == 0:
        buffer[warp, 0] = maximum
        buffer[warp, 1] = total
    cuda.syncthreads()
    maximum, total = merge(buffer[0, 0], buffer[0, 1], buffer[1, 0], buffer[1, 1])
    for turn in range(10):
        column = cuda.threadIdx.x + 64 * turn
        if column < columns:
            y[row, column] = math.exp(x[row, column] - maximum) / total
