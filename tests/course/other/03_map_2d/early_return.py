"""Threads without an element leave at once."""


def outer(a, b, y):
    rows, columns = y.shape
    if cuda.threadIdx.y >= rows or cuda.threadIdx.x >= columns:
        return
    y[cuda.threadIdx.y, cuda.threadIdx.x] = a[cuda.threadIdx.y] * b[cuda.threadIdx.x]
