"""budget: a pass for the largest, and another one for the second.

Says: one pass over the row"""


def merge(first_a, second_a, first_b, second_b):
    return max(first_a, first_b), max(min(first_a, first_b), max(second_a, second_b))


def top_two(x, largest):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    first = float32(-math.inf)
    second = float32(-math.inf)
    place = -1
    for column in range(thread, x.shape[1], 64):
        if x[row, column] > first or place < 0:
            first = x[row, column]
            place = column
    cuda.syncthreads()
    for column in range(thread, x.shape[1], 64):
        if column != place:
            second = max(second, x[row, column])
    for level in range(5):
        first_b = cuda.shfl_xor_sync(0xFFFFFFFF, first, 16 >> level)
        second_b = cuda.shfl_xor_sync(0xFFFFFFFF, second, 16 >> level)
        first, second = merge(first, second, first_b, second_b)
    if thread % 32 == 0:
        buffer[thread // 32, 0] = first
        buffer[thread // 32, 1] = second
    cuda.syncthreads()
    if thread == 0:
        first, second = merge(buffer[0, 0], buffer[0, 1], buffer[1, 0], buffer[1, 1])
        largest[row, 0] = first
        largest[row, 1] = second
