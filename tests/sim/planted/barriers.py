"""Barriers that not all threads of the block reach together."""

import numpy as np
from numba import cuda, float32

from .collection import SIZE, Planted, floats, zeros


@cuda.jit
def barrier_in_the_branch(x, out):
    buffer = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]
    cuda.syncthreads()
    half = SIZE // 2
    while half > 0:
        if thread < half:
            buffer[thread] += buffer[thread + half]
            cuda.syncthreads()  # BUG barrier-divergence: barrier  # FIX drops
        # FIX adds: cuda.syncthreads()
        half //= 2
    if thread == 0:
        out[0] = buffer[0]


@cuda.jit
def return_before_the_barrier(x, out):
    buffer = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    if thread >= x.shape[0]:  # FIX writes: if thread < x.shape[0]:
        return  # FIX writes: buffer[thread] = x[thread]
    buffer[thread] = x[thread]  # FIX drops
    cuda.syncthreads()  # BUG barrier-divergence: barrier
    out[thread] = buffer[x.shape[0] - 1 - thread]  # FIX writes: if thread < x.shape[0]:
    # FIX adds:     out[thread] = buffer[x.shape[0] - 1 - thread]


@cuda.jit
def barrier_in_a_loop_of_own_length(x, length, out):
    thread = cuda.threadIdx.x
    total = float32(0)
    for k in range(length[thread]):  # FIX writes: for k in range(4):
        total += k * x[thread]  # FIX writes: if k < length[thread]:
        # FIX adds:     total += k * x[thread]
        cuda.syncthreads()  # BUG barrier-divergence: barrier
    out[thread] = total


@cuda.jit
def barrier_in_both_branches(x, out):
    buffer = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    if thread < SIZE // 2:
        buffer[thread] = x[thread]
        cuda.syncthreads()  # BUG barrier-divergence: barrier  # FIX drops
    else:
        buffer[thread] = -x[thread]
        cuda.syncthreads()  # BUG barrier-divergence: barrier  # FIX drops
    # FIX adds: cuda.syncthreads()
    out[thread] = buffer[SIZE - 1 - thread]


@cuda.jit
def two_kinds_of_barrier(x, out):
    thread = cuda.threadIdx.x
    if thread < 32:  # FIX writes: count = cuda.syncthreads_count(1 if thread >= 32 and x[thread] > 40 else 0)
        cuda.syncthreads()  # BUG barrier-divergence: barrier  # FIX drops
    else:  # FIX writes: if thread >= 32:
        out[thread] = cuda.syncthreads_count(1 if x[thread] > 40 else 0)  # BUG barrier-divergence: barrier  # FIX drops
        # FIX adds: out[thread] = count


@cuda.jit
def barrier_in_other_turns(x, out):
    thread = cuda.threadIdx.x
    upper = thread >= 32
    total = float32(0)
    for k in range(3):
        # FIX adds: count = cuda.syncthreads_count(1 if x[thread] > k else 0)
        if (k > 0) if upper else (k < 2):
            total += cuda.syncthreads_count(1 if x[thread] > k else 0)  # BUG barrier-divergence: barrier  # FIX drops
            # FIX adds: total += count
    out[thread] = total


def _vector() -> tuple:
    return floats(SIZE), zeros(SIZE)


PLANTED = [
    Planted("barrier-divergence", barrier_in_the_branch, 1, SIZE,
        lambda: (floats(SIZE), zeros(1)),
        "Threads that skip the barrier are not counted, so it never waits for all; before Volta it hung.",
    ),
    Planted("barrier-divergence", return_before_the_barrier, 1, SIZE,
        lambda: (floats(50), zeros(50)),
        "Today's GPUs count a returned thread as arrived, but CUDA promises nothing for a barrier that not all reach.",
    ),
    Planted("barrier-divergence", barrier_in_a_loop_of_own_length, 1, SIZE,
        lambda: (floats(SIZE), 1 + np.arange(SIZE, dtype=np.int32) // 16, zeros(SIZE)),
        "A thread that is done with its loop is missing at the barriers of the others.",
    ),
    Planted("barrier-divergence", barrier_in_both_branches, 1, SIZE, _vector,
        "The two are different barriers to CUDA, and that the hardware lets them pass together is luck.",
    ),
    Planted("barrier-divergence", two_kinds_of_barrier, 1, SIZE, _vector,
        "One kind of barrier counts, the other does not: the count is undefined.",
    ),
    Planted("barrier-divergence", barrier_in_other_turns, 1, SIZE, _vector,
        "Both warps come to the barrier twice, so no thread waits for ever, but their counts are of different turns.",
    ),
]  # fmt: skip
