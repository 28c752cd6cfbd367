"""budget: neighbouring threads store below each other.

Says: sectors stored
"""


def outer(a, b, y):
    row = cuda.threadIdx.x
    column = cuda.threadIdx.y
    if row < y.shape[0] and column < y.shape[1]:
        y[row, column] = a[row] * b[column]
