"""Indices below zero, which Numba counts from the end without a word."""

from numba import cuda, float32

from .collection import SIZE, Planted, floats, zeros


@cuda.jit
def left_of_the_first(x, out):
    i = cuda.grid(1)
    out[i] = x[i] - x[i - 1]  # BUG negative-index: read  # FIX writes: if i > 0:
    # FIX adds:     out[i] = x[i] - x[i - 1]


@cuda.jit
def row_above_the_first(x, out):
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    out[row, column] = x[row, column] + x[row - 1, column]  # BUG negative-index: read  # FIX writes: if row > 0:
    # FIX adds:     out[row, column] = x[row, column] + x[row - 1, column]


@cuda.jit
def shared_left_of_the_first(x, out):
    tile = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    tile[thread] = x[thread]
    cuda.syncthreads()
    out[thread] = tile[thread - 1]  # BUG negative-index: read  # FIX writes: if thread > 0:
    # FIX adds:     out[thread] = tile[thread - 1]


@cuda.jit
def local_left_of_the_first(x, out):
    steps = cuda.local.array(4, float32)
    thread = cuda.threadIdx.x
    for k in range(4):
        steps[k] = x[thread] * k
    total = float32(0)
    for k in range(4):  # FIX writes: for k in range(1, 4):
        total += steps[k] - steps[k - 1]  # BUG negative-index: read
    out[thread] = total


@cuda.jit
def stored_left_of_the_first(x, out):
    i = cuda.grid(1)
    out[i - 2] = x[i]  # BUG negative-index: write  # FIX writes: if i >= 2:
    # FIX adds:     out[i - 2] = x[i]


def _vector() -> tuple:
    return floats(SIZE), zeros(SIZE)


def _matrix() -> tuple:
    return floats(3, 32), zeros(3, 32)


PLANTED = [
    Planted("negative-index", left_of_the_first, 2, 32, _vector,
        "Numba counts -1 from the end: the first difference is taken with the last element, and nothing faults.",
    ),
    Planted("negative-index", row_above_the_first, 3, 32, _matrix,
        "Row -1 is the last row.",
    ),
    Planted("negative-index", shared_left_of_the_first, 1, SIZE, _vector,
        "Thread 0 gets the last thread's element.",
    ),
    Planted("negative-index", local_left_of_the_first, 1, 32,
        lambda: (floats(32), zeros(32)),
        "The first step is counted from the last one, so the sum of all differences is 0.",
    ),
    Planted("negative-index", stored_left_of_the_first, 2, 32, _vector,
        "The first two elements land at the end of the result.",
    ),
]  # fmt: skip
