"""Kernels that another module launches; everything is imported from numba.cuda by name."""

from numba import int32
from numba.cuda import atomic, blockDim, blockIdx, grid, gridsize, jit, shared, syncthreads, threadIdx

BINS = 16


@jit(device=True, inline="always")
def bin_of(value, low, width):
    return int32((value - low) / width)


@jit(lineinfo=True)
def histogram(values, low, high, counts):
    mine = shared.array(BINS, int32)
    if threadIdx.x < BINS:
        mine[threadIdx.x] = 0
    syncthreads()  # all bins are zero
    width = (high - low) / BINS
    for i in range(blockIdx.x * blockDim.x + threadIdx.x, values.size, gridsize(1)):
        if low <= values[i] < high:
            atomic.add(mine, bin_of(values[i], low, width), 1)
    syncthreads()  # all values are counted
    if threadIdx.x < BINS:
        atomic.add(counts, threadIdx.x, mine[threadIdx.x])


@jit
def square(values):
    i = grid(1)
    if i < values.size:
        values[i] = values[i] ** 2
