"""Races through global memory, within a block and between blocks, which no `syncthreads` orders.

What does order them: atomics alone for the element they update; a `threadfence` before an atomic that signals and one
behind the atomic that sees the signal; a grid sync.
"""

import numpy as np
from numba import cuda, float32

from .collection import SIZE, Planted, counters, floats, zeros


@cuda.jit
def histogram_without_atomics(data, bins):
    i = cuda.grid(1)
    bins[data[i]] += 1  # BUG race: read and write  # FIX writes: cuda.atomic.add(bins, data[i], 1)


@cuda.jit
def stencil_in_place(x, n):
    i = cuda.grid(1)
    if 0 < i < n - 1:
        x[i] = x[i - 1] + x[i + 1]  # BUG race: read and write  # FIX writes: x[n + i] = x[i - 1] + x[i + 1]


@cuda.jit
def next_block_is_read(x):
    i = cuda.grid(1)
    value = x[(i + cuda.blockDim.x) % x.shape[0]]  # BUG race: read
    cuda.syncthreads()  # FIX writes: cuda.cg.this_grid().sync()
    x[i] = value  # BUG race: write


@cuda.jit
def phases_without_grid_sync(x, partial, out):
    thread = cuda.threadIdx.x
    block = cuda.blockIdx.x
    if thread == 0:
        partial[block] = x[block]  # BUG race: write
    cuda.syncthreads()  # FIX writes: cuda.cg.this_grid().sync()
    if thread == 0:
        total = float32(0)
        for k in range(cuda.gridDim.x):
            total += partial[k]  # BUG race: read
        out[block] = total


@cuda.jit
def lock_without_fence(x, lock, total):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        # FIX adds: cuda.threadfence()
        total[0] += x[cuda.blockIdx.x]  # BUG race: read and write
        # FIX adds: cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def lock_released_without_fence(x, lock, total):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += x[cuda.blockIdx.x]  # BUG race: read and write
        # FIX adds: cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def lock_released_by_a_store(x, lock, total):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:  # BUG race: atomic
            pass
        cuda.threadfence()
        total[0] += x[cuda.blockIdx.x]
        cuda.threadfence()
        lock[0] = 0  # BUG race: write  # FIX writes: cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def last_block_without_fence(x, partial, done, out):
    block = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        partial[block] = 2 * x[block]  # BUG race: write
        # FIX adds: cuda.threadfence()
        if cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1:
            # FIX adds: cuda.threadfence()
            total = float32(0)
            for k in range(cuda.gridDim.x):
                total += partial[k]  # BUG race: read
            out[0] = total


@cuda.jit
def message_without_fence(x, message, ready, out):
    if cuda.blockIdx.x == 0:
        message[0] = x[0]  # BUG race: write
        # FIX adds: cuda.threadfence()
        cuda.atomic.exch(ready, 0, 1)
    else:
        while cuda.atomic.add(ready, 0, 0) == 0:
            pass
        # FIX adds: cuda.threadfence()
        out[0] = message[0]  # BUG race: read


@cuda.jit
def atomic_beside_plain_read(x, count, out):
    thread = cuda.threadIdx.x
    if x[thread] > 10:
        cuda.atomic.add(count, 0, 1)  # BUG race: atomic
    # FIX adds: cuda.syncthreads()
    if thread == 0:
        out[0] = count[0]  # BUG race: read


def _locked() -> tuple:
    return floats(4), counters(), zeros(1)


PLANTED = [
    Planted("race", histogram_without_atomics, 2, SIZE,
        lambda: (np.arange(2 * SIZE, dtype=np.int32) % 5, counters(5)),
        "Two threads read the same count, both add one and both store the same sum: most counts are lost.",
    ),
    Planted("race", stencil_in_place, 2, SIZE,
        lambda: (np.concatenate([floats(100), zeros(100)]), 100),
        "A thread finds a neighbour's old value or its new one, as the warps happen to run.",
    ),
    Planted("race", next_block_is_read, 2, SIZE,
        lambda: (floats(2 * SIZE),),
        "syncthreads does not hold the other block, which may have overwritten what this one reads.",
    ),
    Planted("race", phases_without_grid_sync, 4, SIZE,
        lambda: (floats(4), zeros(4), zeros(4)),
        "A block adds partial sums that other blocks have not stored yet.",
    ),
    Planted("race", lock_without_fence, 4, 32, _locked,
        "The lock is an atomic, but without fences the total may be loaded before it and stored after its release.",
    ),
    Planted("race", lock_released_without_fence, 4, 32, _locked,
        "The next owner may see the open lock before it sees the new total.",
    ),
    Planted("race", lock_released_by_a_store, 4, 32, _locked,
        "A plain store is not ordered with the atomics that other blocks try on the lock at the same time.",
    ),
    Planted("race", last_block_without_fence, 4, 32,
        lambda: (floats(4), zeros(4), counters(), zeros(1)),
        "The last block may see the count of four before it sees the four partial sums.",
    ),
    Planted("race", message_without_fence, 2, 1,
        lambda: (floats(1), zeros(1), counters(), zeros(1)),
        "The flag may arrive before the message.",
    ),
    Planted("race", atomic_beside_plain_read, 1, SIZE,
        lambda: (floats(SIZE), counters(), zeros(1)),
        "Thread 0 may read the count before the other warp has counted.",
    ),
]  # fmt: skip
