"""Turned round on the way into the tile, not out of it."""


def transpose(x, y):
    column = cuda.threadIdx.x
    first_column = cuda.blockIdx.x * 32
    first_row = cuda.blockIdx.y * 32
    tile = cuda.shared.array((32, 33), float32)
    for part in range(4):
        row = cuda.threadIdx.y + 8 * part
        inside = first_row + row < x.shape[0] and first_column + column < x.shape[1]
        tile[column, row] = x[first_row + row, first_column + column] if inside else float32(0)
    cuda.syncthreads()
    for part in range(4):
        row = cuda.threadIdx.y + 8 * part
        if first_column + row < y.shape[0] and first_row + column < y.shape[1]:
            y[first_column + row, first_row + column] = tile[row, column]
