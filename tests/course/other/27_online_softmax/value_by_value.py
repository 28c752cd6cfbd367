"""A value changes the total by one exponential; an empty group is looked at before its exponent is computed."""


@cuda.jit(device=True)
def merge(maximum_a, total_a, maximum_b, total_b):
    m = max(maximum_a, maximum_b)
    ea = math.exp(maximum_a - m) if maximum_a > -math.inf else float32(0)
    eb = math.exp(maximum_b - m) if maximum_b > -math.inf else float32(0)
    return m, total_a * ea + total_b * eb


@cuda.jit
def softmax(x, y):
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    columns = x.shape[1]
    maximum = float32(-math.inf)
    total = float32(0)
    t = cuda.threadIdx.x
    c = t
    while c < columns:
        v = x[row, c]
        if v > maximum:
            total = total * math.exp(maximum - v) + float32(1)
            maximum = v
        elif v > -math.inf:
            total += math.exp(v - maximum)
        c += 64
    d = 16
    while d:
        m2 = cuda.shfl_down_sync(0xFFFFFFFF, maximum, d)
        t2 = cuda.shfl_down_sync(0xFFFFFFFF, total, d)
        maximum, total = merge(maximum, total, m2, t2)
        d >>= 1
    if t & 31 == 0:
        buffer[0, t >> 5], buffer[1, t >> 5] = maximum, total
    cuda.syncthreads()
    maximum, total = merge(buffer[0, 0], buffer[1, 0], buffer[0, 1], buffer[1, 1])
    scale = float32(1) / total
    for c in range(t, columns, 64):
        y[row, c] = math.exp(x[row, c] - maximum) * scale
