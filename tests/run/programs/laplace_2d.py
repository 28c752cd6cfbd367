"""Laplace's equation on a plate: Jacobi iterations until the largest change is small."""

import math

import numpy as np
from numba import cuda

BLOCK = 8, 8


@cuda.jit
def jacobi(u, new, change):
    i, j = cuda.grid(2)
    if 1 <= i < u.shape[0] - 1 and 1 <= j < u.shape[1] - 1:
        new[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])
        cuda.atomic.max(change, 0, math.fabs(new[i, j] - u[i, j]))


n = 15
plate = np.zeros((n, n))
plate[0] = 1.0
grid = tuple(math.ceil(n / width) for width in BLOCK)
u, new = cuda.to_device(plate), cuda.to_device(plate)
change = np.zeros(1)
iterations = 0
while True:
    change[0] = 0
    jacobi[grid, BLOCK](u, new, change)
    u, new = new, u
    iterations += 1
    if change[0] < 1e-2:
        break
print("result:", iterations, u[7, 7], u.copy_to_host()[1:-1, 1:-1].sum())
