"""Threads 0 and 1 load the halo in one request."""


def sum_of_three(x, y):
    tile = cuda.shared.array(34, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n = x.shape[0]
    tile[1 + t] = x[i] if i < n else float32(0)
    if t < 2:
        k = i - t - 1 + 33 * t
        tile[33 * t] = x[k] if 0 <= k < n else float32(0)
    cuda.syncthreads()
    total = float32(0)
    for k in range(3):
        total += tile[t + k]
    if i < n:
        y[i] = total
