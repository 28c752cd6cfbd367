"""Two planted bugs: a barrier is missing, and half of a buffer is read that no earlier launch wrote."""

import sys

import numpy as np
from numba import cuda, float32


@cuda.jit
def first_half(x, out):
    i = cuda.grid(1)
    if i < x.size // 2:
        out[i] = x[i]


@cuda.jit
def total(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, 0, x[i])


@cuda.jit
def reverse(x):
    shared = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    x[t] = shared[63 - t]


x = cuda.to_device(np.ones(64, np.float32))
buffer = cuda.device_array(64, np.float32)
out = np.zeros(1, np.float32)
first_half[1, 64](x, buffer)
total[1, 64](buffer, out)
for _ in range(3):
    reverse[1, 64](x)
print("result:", np.isnan(out[0]))
sys.exit(5)
