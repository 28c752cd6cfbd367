"""Races through shared memory where a barrier is missing, or is of too small a group, or stands at the wrong place."""

import numpy as np
from numba import cuda, float32, int32

from .collection import SIZE, Planted, counters, floats, zeros


@cuda.jit
def tree_sum_without_barrier(x, out):
    buffer = cuda.shared.array(4 * 32, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]
    cuda.syncthreads()  # FIX drops
    half = cuda.blockDim.x // 2
    while half > 0:
        # FIX adds: cuda.syncthreads()
        if thread < half:
            buffer[thread] += buffer[thread + half]  # BUG race: read and write
        half //= 2
    if thread == 0:
        out[0] = buffer[0]


@cuda.jit
def reverse_without_barrier(x):
    buffer = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]  # BUG race: write
    # FIX adds: cuda.syncthreads()
    x[thread] = buffer[SIZE - 1 - thread]  # BUG race: read


@cuda.jit
def reverse_with_syncwarp_only(x):
    buffer = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]  # BUG race: write
    cuda.syncwarp()  # FIX writes: cuda.syncthreads()
    x[thread] = buffer[SIZE - 1 - thread]  # BUG race: read


@cuda.jit
def double_buffer_with_early_barrier(x, out):
    tile = cuda.shared.array((2, SIZE), float32)
    thread = cuda.threadIdx.x
    total = float32(0)
    tile[0, thread] = x[0, thread]
    for k in range(x.shape[0]):
        now = k % 2
        if k + 1 < x.shape[0]:
            tile[1 - now, thread] = x[k + 1, thread]  # BUG race: write
        cuda.syncthreads()
        total += tile[now, SIZE - 1 - thread]  # BUG race: read
        # FIX adds: cuda.syncthreads()
    out[thread] = total


@cuda.jit
def buffer_reused_in_next_row(x, out):
    buffer = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    for row in range(x.shape[0]):
        buffer[thread] = x[row, thread]  # BUG race: write
        cuda.syncthreads()
        if thread == 0:
            total = float32(0)
            for k in range(SIZE):
                total += buffer[k]  # BUG race: read
            out[row] = total
        # FIX adds: cuda.syncthreads()


@cuda.jit
def broadcast_without_barrier(x, out):
    first = cuda.shared.array(1, float32)
    thread = cuda.threadIdx.x
    if thread == 0:
        first[0] = x[0]  # BUG race: write
    # FIX adds: cuda.syncthreads()
    out[thread] = x[thread] - first[0]  # BUG race: read


@cuda.jit
def bins_cleared_without_barrier(data, out):
    bins = cuda.shared.array(SIZE, int32)
    thread = cuda.threadIdx.x
    bins[thread] = 0  # BUG race: write
    # FIX adds: cuda.syncthreads()
    cuda.atomic.add(bins, data[thread], 1)  # BUG race: atomic
    cuda.syncthreads()
    out[thread] = bins[thread]


def _row() -> tuple:
    return floats(SIZE), zeros(SIZE)


PLANTED = [
    Planted("race", tree_sum_without_barrier, 1, 128,
        lambda: (floats(128), zeros(1)),
        "Warp 0 adds what warp 1 has perhaps not stored yet: the sum is too small, now and then.",
    ),
    Planted("race", reverse_without_barrier, 1, SIZE,
        lambda: (floats(SIZE),),
        "A warp that is ahead reads the other warp's half before it is written.",
    ),
    Planted("race", reverse_with_syncwarp_only, 1, SIZE,
        lambda: (floats(SIZE),),
        "syncwarp orders the lanes of one warp; the values here come from the other one.",
    ),
    Planted("race", double_buffer_with_early_barrier, 1, SIZE,
        lambda: (floats(5, SIZE), zeros(SIZE)),
        "Between a step's reading and the next step's writing into the same buffer there is no barrier.",
    ),
    Planted("race", buffer_reused_in_next_row, 1, SIZE,
        lambda: (floats(3, SIZE), zeros(3)),
        "Warp 1 stores the next row while thread 0 still adds this one.",
    ),
    Planted("race", broadcast_without_barrier, 1, SIZE,
        _row,
        "Warp 1 may subtract what shared memory held before thread 0 has written.",
    ),
    Planted("race", bins_cleared_without_barrier, 1, SIZE,
        lambda: ((np.arange(SIZE, dtype=np.int32) * 7 + 40) % SIZE, counters(SIZE)),
        "A bin is counted up before its own thread clears it, and the count is lost.",
    ),
]  # fmt: skip
