"""Indices behind the end of an array, in one of its dimensions."""

import numpy as np
from numba import cuda, float32

from .collection import SIZE, Planted, counters, floats, zeros


@cuda.jit
def missing_guard(x, out):
    i = cuda.grid(1)
    value = x[i % x.shape[0]]
    out[i] = value  # BUG out-of-bounds: write  # FIX writes: if i < out.shape[0]:
    # FIX adds:     out[i] = value


@cuda.jit
def halo_off_by_one(x, out):
    i = cuda.grid(1)
    if 0 < i < x.shape[0]:  # FIX writes: if 0 < i < x.shape[0] - 1:
        out[i] = x[i - 1] + x[i + 1]  # BUG out-of-bounds: read


@cuda.jit
def column_past_the_row(x, out):
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    if row + 1 < x.shape[0]:  # FIX writes: if row + 1 < x.shape[0] and column + 1 < x.shape[1]:
        out[row, column] = x[row, column + 1]  # BUG out-of-bounds: read


@cuda.jit
def transposed_index(x, out):
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    out[column, row] = x[row, column]  # BUG out-of-bounds: write  # FIX writes: out[row, column] = x[row, column]


@cuda.jit
def shared_past_the_end(x, out):
    tile = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    tile[thread] = x[thread]
    cuda.syncthreads()
    out[thread] = tile[thread + 1] - tile[thread]  # BUG out-of-bounds: read  # FIX writes: if thread + 1 < SIZE:
    # FIX adds:     out[thread] = tile[thread + 1] - tile[thread]


@cuda.jit
def local_past_the_end(data, out):
    seen = cuda.local.array(4, float32)  # FIX writes: seen = cuda.local.array(5, float32)
    thread = cuda.threadIdx.x
    for k in range(4):  # FIX writes: for k in range(5):
        seen[k] = float32(0)
    for k in range(data.shape[0]):
        seen[data[k]] += float32(1)  # BUG out-of-bounds: read and write
    out[thread] = seen[0] + seen[1] + seen[2] + seen[3]


@cuda.jit
def atomic_past_the_bins(data, bins):
    i = cuda.grid(1)
    cuda.atomic.add(bins, data[i], 1)  # BUG out-of-bounds: atomic  # FIX writes: if data[i] < bins.shape[0]:
    # FIX adds:     cuda.atomic.add(bins, data[i], 1)


def _vector() -> tuple:
    return floats(SIZE), zeros(SIZE)


def _matrix() -> tuple:
    return floats(3, 32), zeros(3, 32)


PLANTED = [
    Planted("out-of-bounds", missing_guard, 2, SIZE,
        lambda: (floats(100), zeros(100)),
        "The last block writes behind the array, into another one perhaps.",
    ),
    Planted("out-of-bounds", halo_off_by_one, 2, 32, _vector,
        "The last element's right neighbour lies behind the array.",
    ),
    Planted("out-of-bounds", column_past_the_row, 3, 32, _matrix,
        "The address is that of the next row's first element: no fault, a wrong number.",
    ),
    Planted("out-of-bounds", transposed_index, 3, 32, _matrix,
        "Most addresses lie behind the array; those of the first columns lie inside, at the wrong places.",
    ),
    Planted("out-of-bounds", shared_past_the_end, 1, SIZE, _vector,
        "The last thread reads behind the block's shared memory.",
    ),
    Planted("out-of-bounds", local_past_the_end, 1, 32,
        lambda: (np.array([0, 1, 4, 2], np.int32), zeros(32)),
        "The count of the value 4 goes to whatever lies behind the array on the thread's stack.",
    ),
    Planted("out-of-bounds", atomic_past_the_bins, 1, 32,
        lambda: (np.arange(32, dtype=np.int32) // 4, counters(7)),
        "The atomic counts up a word that belongs to someone else.",
    ),
]  # fmt: skip
