"""Two processes that multiprocessing spawns, each with its own device."""

import multiprocessing

import numpy as np
from numba import cuda


@cuda.jit
def cube(x):
    i = cuda.grid(1)
    x[i] = x[i] ** 3


def work(start):
    x = np.arange(start, start + 4)
    cube[1, 4](x)
    return x.sum()


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print("result:", *pool.map(work, [0, 4]))
