"""race: all threads that are left over write the last element."""


def negate(x, y):
    i = min(cuda.threadIdx.x, x.shape[0] - 1)
    y[i] = -x[i]
