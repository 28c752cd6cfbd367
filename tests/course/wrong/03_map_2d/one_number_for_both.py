"""values: the diagonal only.

Says: no thread wrote it
"""


def outer(a, b, y):
    i = cuda.threadIdx.x
    if i < y.shape[0] and i < y.shape[1] and cuda.threadIdx.y == 0:
        y[i, i] = a[i] * b[i]
