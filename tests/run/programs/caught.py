"""Launches that go wrong, some of them caught by the program: what was found in them before counts."""

import numpy as np
from numba import cuda


@cuda.jit
def raising(x, wrong):
    i = cuda.grid(1)
    if wrong:
        x[0] = i
    cuda.syncthreads()
    if wrong and i == 32:
        raise ValueError("mine")


@cuda.jit
def outside(x):
    i = cuda.grid(1)
    x[i + 1] = i


x = np.zeros(1)
caught = 0
for wrong in (False, False, False, True):
    try:
        raising[(1, 1), 33](x, wrong)
    except ValueError:
        caught += 1
try:
    outside[1, 1](x)
except IndexError:
    caught += 2
print("result:", caught)
