"""Matrix product through tiles in shared memory; sizes need not be multiples of the tile."""

import argparse
import math

import numpy as np
from numba import cuda, float32

TILE = 8


@cuda.jit(fastmath=True)
def matmul(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), dtype=float32)
    tile_b = cuda.shared.array((TILE, TILE), dtype=float32)
    row, column = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for step in range((a.shape[1] + TILE - 1) // TILE):
        k = step * TILE
        tile_a[x, y] = a[row, k + y] if row < a.shape[0] and k + y < a.shape[1] else 0
        tile_b[x, y] = b[k + x, column] if k + x < b.shape[0] and column < b.shape[1] else 0
        cuda.syncthreads()  # both tiles are whole
        for j in range(TILE):
            total += tile_a[x, j] * tile_b[j, y]
        cuda.syncthreads()  # nobody reads them any more
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--inner", type=int, default=13)
    parser.add_argument("--columns", type=int, default=17)
    options = parser.parse_args()
    a = np.arange(options.rows * options.inner, dtype=np.float32).reshape(options.rows, options.inner) % 7
    b = np.arange(options.inner * options.columns, dtype=np.float32).reshape(options.inner, options.columns) % 5
    d_c = cuda.device_array((options.rows, options.columns), np.float32)
    grid = math.ceil(options.rows / TILE), math.ceil(options.columns / TILE)
    matmul[grid, (TILE, TILE)](cuda.to_device(a), cuda.to_device(b), d_c)
    print("result:", np.abs(d_c.copy_to_host() - a @ b).max(), d_c.copy_to_host().sum())


if __name__ == "__main__":
    main()
