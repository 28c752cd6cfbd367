"""A guard inside of a guard."""


def outer(a, b, y):
    r = cuda.threadIdx.y
    if r < y.shape[0]:
        c = cuda.threadIdx.x
        if c < y.shape[1]:
            y[r, c] = b[c] * a[r]
