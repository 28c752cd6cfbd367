"""budget: all threads leave their two, and thread 0 merges 64 pairs.

Says: let all threads share the work"""


def merge(first_a, second_a, first_b, second_b):
    return max(first_a, first_b), max(min(first_a, first_b), max(second_a, second_b))


def top_two(x, largest):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    first = float32(-math.inf)
    second = float32(-math.inf)
    for column in range(thread, x.shape[1], 64):
        first, second = merge(first, second, x[row, column], float32(-math.inf))
    pairs = cuda.shared.array((64, 2), float32)
    pairs[thread, 0] = first
    pairs[thread, 1] = second
    cuda.syncthreads()
    if thread == 0:
        for other in range(1, 64):
            first, second = merge(first, second, pairs[other, 0], pairs[other, 1])
        largest[row, 0] = first
        largest[row, 1] = second
