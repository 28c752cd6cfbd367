"""y is as long as x."""

from normlab.engine import float32


def negate(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = float32(0) - x[i]
