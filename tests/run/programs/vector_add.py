"""Vector addition, with host arrays and with device arrays."""

import numpy as np
from numba import cuda


@cuda.jit
def add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


n = 1000
a = np.linspace(0, 1, n)
b = np.linspace(5, -5, n)
from_host = np.empty_like(a)
add[(n + 255) // 256, 256](a, b, from_host)

d_a, d_b = cuda.to_device(a), cuda.to_device(b)
d_out = cuda.device_array_like(d_a)
a[:] = b[:] = 7  # too late to matter: the device has its own copies
add[8, 128](d_a, d_b, d_out)
print("result:", from_host.sum(), d_out.copy_to_host().sum())
