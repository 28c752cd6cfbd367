"""out-of-bounds: the load comes before the question."""


def negate(x, y):
    i = cuda.threadIdx.x
    value = x[i]
    if i < x.shape[0]:
        y[i] = -value
