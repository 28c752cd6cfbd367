"""values: the halo is zero between blocks, too."""


def sum_of_three(x, y):
    tile = cuda.shared.array(34, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n = x.shape[0]
    tile[1 + t] = x[i] if i < n else float32(0)
    if t == 0:
        tile[0] = float32(0)
        tile[33] = float32(0)
    cuda.syncthreads()
    if i < n:
        y[i] = tile[t] + tile[t + 1] + tile[t + 2]
