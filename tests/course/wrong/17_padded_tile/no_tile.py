"""budget: writes columns of y, a sector for each element.

Says: sectors stored, at most 128 allowed
"""


def transpose(x, y):
    column = cuda.threadIdx.x
    first_column = cuda.blockIdx.x * 32
    first_row = cuda.blockIdx.y * 32
    for row in range(cuda.threadIdx.y, 32, 8):
        if first_row + row < x.shape[0] and first_column + column < x.shape[1]:
            y[first_column + column, first_row + row] = x[first_row + row, first_column + column]
