"""budget: thread 0 loads the whole tile.

Says: let all threads share the work
"""


def sum_of_three(x, y):
    tile = cuda.shared.array(34, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n = x.shape[0]
    if t == 0:
        for k in range(34):
            tile[k] = x[i + k - 1] if 0 <= i + k - 1 < n else float32(0)
    cuda.syncthreads()
    if i < n:
        y[i] = tile[t] + tile[t + 1] + tile[t + 2]
