"""race: reads the tile before the other warps have written it.

Says: no barrier between the write
"""


def transpose(x, y):
    column = cuda.threadIdx.x
    first_column = cuda.blockIdx.x * 32
    first_row = cuda.blockIdx.y * 32
    tile = cuda.shared.array((32, 33), float32)
    rows, columns = x.shape
    for row in range(cuda.threadIdx.y, 32, 8):
        if first_row + row < rows and first_column + column < columns:
            tile[row, column] = x[first_row + row, first_column + column]
    for row in range(cuda.threadIdx.y, 32, 8):
        if first_column + row < columns and first_row + column < rows:
            y[first_column + row, first_row + column] = tile[column, row]
