"""race: the next tiles arrive while others still multiply.

Says: next turn
"""


def product(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x = cuda.threadIdx.x
    y = cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + y
    column = cuda.blockIdx.x * TILE + x
    total = float32(0)
    for first in range(0, a.shape[1], TILE):
        tile_a[y, x] = float32(0)
        tile_b[y, x] = float32(0)
        if row < a.shape[0] and first + x < a.shape[1]:
            tile_a[y, x] = a[row, first + x]
        if first + y < b.shape[0] and column < b.shape[1]:
            tile_b[y, x] = b[first + y, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[y, k] * tile_b[k, x]
        pass
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
