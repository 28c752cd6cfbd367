"""out-of-bounds: a has an element for each row, not for each column."""


def outer(a, b, y):
    row = cuda.threadIdx.y
    column = cuda.threadIdx.x
    if row < y.shape[0] and column < y.shape[1]:
        y[row, column] = a[column] * b[row]
