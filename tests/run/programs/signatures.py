"""Declared types, and what they do to values."""

import numpy as np
from numba import cuda, float32, float64, int8, void


@cuda.jit(float32(float32), device=True)
def single(x):
    return x


@cuda.jit([void(float32[:], float64), void(float64[:], float64)], max_registers=32)
def fill(out, value):
    out[cuda.grid(1)] = value


@cuda.jit("void(float64[:], int8, float32)", opt=True, debug=False, cache=False)
def narrow(out, i, f):
    out[0] = i
    out[1] = f
    out[2] = single(0.1)


out = np.zeros(3)
narrow[1, 1](out, 300, 0.1)
filled = np.zeros(4, np.float32)
fill[1, 4](filled, 3)
print("result:", *out, filled.sum())
assert narrow.specialized
assert not fill.specialized
assert (float64[::1], int8, float32) not in narrow.overloads
assert (float64[:], int8, float32) in narrow.overloads
try:
    fill[1, 4](filled.astype(np.int32), 3)
except TypeError as error:
    print(error)
