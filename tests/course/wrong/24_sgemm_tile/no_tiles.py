"""budget: right, and loads each element once for every use.

Says: loaded by one thread
"""


def product(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x = cuda.threadIdx.x
    y = cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + y
    column = cuda.blockIdx.x * TILE + x
    total = float32(0)
    if row < c.shape[0] and column < c.shape[1]:
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
