"""out-of-bounds: <= lets one thread too many through."""


def negate(x, y):
    i = cuda.threadIdx.x
    if i <= x.shape[0]:
        y[i] = -x[i]
