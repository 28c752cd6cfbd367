"""A kernel that fails far below the line that launches it."""

import numpy as np
from numba import cuda


@cuda.jit(device=True)
def deeper(x, i):
    return x[i + 7]


@cuda.jit
def shift(x):
    x[cuda.grid(1)] = deeper(x, cuda.grid(1))


def launch():
    shift[1, 4](np.zeros(8))


launch()
