"""budget: one of the two warps loads both tiles, and the other waits.

Says: let all threads share the work
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
        if y < 4:
            for down in range(y, TILE, 4):
                tile_a[down, x] = float32(0)
                tile_b[down, x] = float32(0)
                if row - y + down < a.shape[0] and first + x < a.shape[1]:
                    tile_a[down, x] = a[row - y + down, first + x]
                if first + down < b.shape[0] and column < b.shape[1]:
                    tile_b[down, x] = b[first + down, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[y, k] * tile_b[k, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
