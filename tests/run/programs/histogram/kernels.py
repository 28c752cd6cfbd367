"""Kernels that another module launches; all that Numba knows by its bare name is imported from numba.cuda by name."""

from numba import cuda, int32
from numba.cuda import grid, gridsize, jit, syncthreads

BINS = 16


@jit(device=True, inline="always")
def bin_of(value, low, width):
    return int32((value - low) / width)


@jit(lineinfo=True)
def histogram(values, low, high, counts):
    mine = cuda.shared.array(BINS, int32)
    if cuda.threadIdx.x < BINS:
        mine[cuda.threadIdx.x] = 0
    syncthreads()  # all bins are zero
    width = (high - low) / BINS
    for i in range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, values.size, gridsize(1)):
        if low <= values[i] < high:
            cuda.atomic.add(mine, bin_of(values[i], low, width), 1)
    syncthreads()  # all values are counted
    if cuda.threadIdx.x < BINS:
        cuda.atomic.add(counts, cuda.threadIdx.x, mine[cuda.threadIdx.x])


@jit
def square(values):
    i = grid(1)
    if i < values.size:
        values[i] = values[i] ** 2
