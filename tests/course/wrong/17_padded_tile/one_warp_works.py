"""budget: one of the eight warps moves the whole tile, and the others wait.

Says: let all threads share the work
"""


def transpose(x, y):
    column = cuda.threadIdx.x
    first_column = cuda.blockIdx.x * 32
    first_row = cuda.blockIdx.y * 32
    tile = cuda.shared.array((32, 33), float32)
    rows, columns = x.shape
    if cuda.threadIdx.y == 0:
        for row in range(32):
            if first_row + row < rows and first_column + column < columns:
                tile[row, column] = x[first_row + row, first_column + column]
    cuda.syncthreads()
    if cuda.threadIdx.y == 0:
        for row in range(32):
            if first_column + row < columns and first_row + column < rows:
                y[first_column + row, first_row + column] = tile[column, row]
