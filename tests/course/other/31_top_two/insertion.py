"""Inserts value by value, and swaps two groups so that the larger first is the first."""


@cuda.jit(device=True)
def merge(first_a, second_a, first_b, second_b):
    if first_b > first_a:
        first_a, second_a, first_b, second_b = first_b, second_b, first_a, second_a
    return first_a, max(second_a, first_b)


@cuda.jit
def top_two(x, largest):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    first = float32(-math.inf)
    second = float32(-math.inf)
    for c in range(thread, x.shape[1], 64):
        v = x[row, c]
        if v >= first:
            second, first = first, v
        elif v > second:
            second = v
    for d in (16, 8, 4, 2, 1):
        f, s = cuda.shfl_xor_sync(0xFFFFFFFF, first, d), cuda.shfl_xor_sync(0xFFFFFFFF, second, d)
        first, second = merge(first, second, f, s)
    if thread == 32:
        buffer[0, 0], buffer[0, 1] = first, second
    cuda.syncthreads()
    if thread == 0:
        largest[row, 0], largest[row, 1] = merge(first, second, buffer[0, 0], buffer[0, 1])
