"""Conway's Game of Life as a class: kernels as static methods, device state in attributes."""

import numpy as np
from numba import cuda


class Life:
    threads = (8, 8)

    def __init__(self, cells):
        self.shape = cells.shape
        self.now = cuda.to_device(cells.astype(np.uint8))
        self.next = cuda.device_array(cells.shape, np.uint8)

    @staticmethod
    @cuda.jit(device=True)
    def neighbours(cells, i, j):
        count = 0
        for di in range(-1, 2):
            for dj in range(-1, 2):
                if di != 0 or dj != 0:
                    count += cells[(i + di) % cells.shape[0], (j + dj) % cells.shape[1]]
        return count

    def advance(self, generations):
        grid = tuple(-(-size // width) for size, width in zip(self.shape, self.threads, strict=True))
        for _ in range(generations):
            generation[grid, self.threads](self.now, self.next)
            self.now, self.next = self.next, self.now
        return self

    @property
    def cells(self):
        return self.now.copy_to_host()


neighbours = Life.neighbours


@cuda.jit
def generation(now, after):
    i, j = cuda.grid(2)
    if i < now.shape[0] and j < now.shape[1]:
        count = neighbours(now, i, j)
        after[i, j] = 1 if count == 3 or (now[i, j] == 1 and count == 2) else 0


glider = np.zeros((10, 10))
glider[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = 1
life = Life(glider).advance(4)
print("result:", int(life.cells.sum()), int((life.cells == np.roll(glider, (1, 1), (0, 1))).all()))
