"""`vectorize` and `guvectorize` for the cuda target, on host arrays, device arrays and scalars."""

import math

import numpy as np
from numba import cuda, guvectorize, vectorize


@vectorize(["float32(float32, float32)", "float64(float64, float64)"], target="cuda")
def hypotenuse(a, b):
    return math.sqrt(a * a + b * b)


@vectorize(["int64(int64, int64)"], target="cuda")
def plus(a, b):
    return a + b


@guvectorize(["void(float64[:], float64, float64[:], float64[:])"], "(n),()->(n),()", target="cuda")
def shifted(row, by, out, total):
    total[0] = 0
    for i in range(row.shape[0]):
        out[i] = row[i] + by
        total[0] += out[i]


column, row = np.arange(3, dtype=np.float32)[:, None], np.arange(4, dtype=np.float32)
table = hypotenuse(column, row)
on_device = hypotenuse(cuda.to_device(np.arange(5.0)), 12.0)
assert cuda.is_cuda_array(on_device)
moved, totals = shifted(np.arange(6.0).reshape(2, 3), np.array([10.0, 20.0]))
print("result:", table.sum(), table.dtype == np.float32, on_device[4], plus.reduce(np.arange(11)), moved.sum(), *totals)
