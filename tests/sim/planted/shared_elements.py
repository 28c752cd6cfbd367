"""Races of threads that take one element for their own: each reads or writes where another one writes."""

from numba import cuda, float32

from .collection import SIZE, Planted, counters, floats, zeros


@cuda.jit
def warp_sum_without_syncwarp(x, out):
    buffer = cuda.shared.array(SIZE, float32)
    lane = cuda.threadIdx.x
    buffer[lane] = x[lane]
    buffer[lane + 32] = float32(0)
    cuda.syncwarp()
    offset = 16
    while offset > 0:
        buffer[lane] += buffer[lane + offset]  # BUG race: read and write  # FIX drops
        # FIX adds: value = buffer[lane + offset]
        # FIX adds: cuda.syncwarp()
        # FIX adds: buffer[lane] += value
        # FIX adds: cuda.syncwarp()
        offset //= 2
    if lane == 0:
        out[0] = buffer[0]


@cuda.jit
def scan_in_one_buffer(x, out):
    buffer = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]
    cuda.syncthreads()
    offset = 1
    while offset < SIZE:
        if thread >= offset:  # FIX writes: value = buffer[thread - offset] if thread >= offset else float32(0)
            buffer[thread] += buffer[thread - offset]  # BUG race: read and write  # FIX drops
        # FIX adds: cuda.syncthreads()
        # FIX adds: buffer[thread] += value
        cuda.syncthreads()
        offset *= 2
    out[thread] = buffer[thread]


@cuda.jit
def two_arrays_in_one_memory(x, y, out):
    a = cuda.shared.array(0, float32)
    b = cuda.shared.array(0, float32)  # FIX writes: b = cuda.shared.array(0, float32)[SIZE:]
    thread = cuda.threadIdx.x
    a[thread] = x[thread]  # BUG race: write
    b[SIZE - 1 - thread] = y[thread]  # BUG race: write
    cuda.syncthreads()
    out[thread] = a[thread] * b[thread]


@cuda.jit
def pairs_written_twice(x, out):
    thread = cuda.threadIdx.x
    out[thread // 2] = x[thread]  # BUG race: write  # FIX writes: if thread % 2 == 0:
    # FIX adds:     out[thread // 2] = x[thread]


@cuda.jit
def everyone_raises_the_flag(x, negative):
    thread = cuda.threadIdx.x
    if x[thread] < 0:  # FIX writes: if cuda.syncthreads_or(1 if x[thread] < 0 else 0) and thread == 0:
        negative[0] = 1  # BUG race: write


def _row() -> tuple:
    return floats(SIZE), zeros(SIZE)


PLANTED = [
    Planted("race", warp_sum_without_syncwarp, 1, 32,
        lambda: (floats(32), zeros(1)),
        "Since Volta the lanes of a warp need not run in step, nor does the compiler keep each store before the load.",
    ),
    Planted("race", scan_in_one_buffer, 1, SIZE,
        _row,
        "A thread may read its neighbour's sum of this round instead of the last one's, and count terms twice.",
    ),
    Planted("race", two_arrays_in_one_memory, 1, SIZE,
        lambda: (floats(SIZE), floats(SIZE), zeros(SIZE)),
        "All arrays of shape 0 are the same dynamic shared memory: each product has two factors from one array.",
        dynamic_shared=2 * SIZE * 4,
    ),
    Planted("race", pairs_written_twice, 1, SIZE,
        lambda: (floats(SIZE), zeros(SIZE // 2)),
        "Of two lanes that store to one address one wins, and CUDA does not say which.",
    ),
    Planted("race", everyone_raises_the_flag, 1, SIZE,
        lambda: (-floats(SIZE), counters()),
        "All threads store the same 1, so the result is right on today's hardware, though still a race by the rules.",
        benign=True,
    ),
]  # fmt: skip
