"""A device function knows what lies outside."""


@cuda.jit(device=True)
def element(x, i):
    if 0 <= i < x.shape[0]:
        return x[i]
    return float32(0)


def sum_of_three(x, y):
    tile = cuda.shared.array(34, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[1 + t] = element(x, i)
    if t == 0:
        tile[0] = element(x, i - 1)
        tile[33] = element(x, i + 32)
    cuda.syncthreads()
    if i >= x.shape[0]:
        return
    y[i] = tile[t + 2] + tile[t + 1] + tile[t]
