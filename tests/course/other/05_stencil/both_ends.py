"""The first thread and the last one load the halo."""


def sum_of_three(x, y):
    tile = cuda.shared.array(34, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    value = float32(0)
    if i < x.shape[0]:
        value = x[i]
    tile[t + 1] = value
    if t == 0:
        tile[0] = x[i - 1] if i >= 1 else float32(0)
    if t == 31:
        tile[33] = x[i + 1] if i + 1 < x.shape[0] else float32(0)
    cuda.syncthreads()
    if i < x.shape[0]:
        y[i] = tile[t] + value + tile[t + 2]
