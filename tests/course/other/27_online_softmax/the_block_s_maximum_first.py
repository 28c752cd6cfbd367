"""Online only within a thread: then the block's maximum, to which each thread corrects its total, and a plain sum."""


def merge(maximum_a, total_a, maximum_b, total_b):
    maximum = max(maximum_a, maximum_b)
    base = maximum if maximum > -math.inf else float32(0)
    return maximum, total_a * math.exp(maximum_a - base) + total_b * math.exp(maximum_b - base)


def softmax(x, y):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    columns = x.shape[1]
    maximum = float32(-math.inf)
    total = float32(0)
    thread = cuda.threadIdx.x
    for column in range(thread, columns, 64):
        maximum, total = merge(maximum, total, x[row, column], float32(1))
    largest = maximum
    for level in range(5):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 1 << level))
    if thread % 32 == 0:
        buffer[0, thread // 32] = largest
    cuda.syncthreads()
    largest = max(buffer[0, 0], buffer[0, 1])
    if largest > -math.inf:
        total = total * math.exp(maximum - largest)
    for level in range(5):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1 << level)
    if thread % 32 == 0:
        buffer[1, thread // 32] = total
    cuda.syncthreads()
    total = buffer[1, 0] + buffer[1, 1]
    for column in range(thread, columns, 64):
        y[row, column] = math.exp(x[row, column] - largest) / total
