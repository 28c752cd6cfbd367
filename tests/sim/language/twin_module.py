"""Device functions in a module of their own: kernels of the tests name them through the module and by import."""

from numba import cuda, float32

SCALE = 3


@cuda.jit(device=True)
def scaled(x):
    return float32(x * SCALE) + cuda.threadIdx.x


@cuda.jit(device=True)
def factorial(n):
    if n < 2:
        return 1
    return n * factorial(n - 1)
