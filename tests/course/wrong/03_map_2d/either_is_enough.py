"""out-of-bounds: or in place of and."""


def outer(a, b, y):
    row = cuda.threadIdx.y
    column = cuda.threadIdx.x
    if row < y.shape[0] or column < y.shape[1]:
        y[row, column] = a[row] * b[column]
