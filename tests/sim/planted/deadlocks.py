"""Threads that wait for each other, or for nobody. On a GPU none of these kernels comes back."""

from numba import cuda

from .collection import Planted, counters, floats, zeros

FULL = 0xFFFFFFFF
LOWER_HALF = 0x0000FFFF


@cuda.jit
def two_locks_two_orders(locks, holders, count):
    first = cuda.blockIdx.x  # FIX writes: while cuda.atomic.cas(locks, 0, 0, 1) != 0:
    while cuda.atomic.cas(locks, first, 0, 1) != 0:  # FIX drops
        pass
    cuda.atomic.add(holders, 0, 1)  # FIX writes: while cuda.atomic.cas(locks, 1, 0, 1) != 0:
    while cuda.atomic.add(holders, 0, 0) < 2:  # both blocks have their first lock now  # FIX drops
        pass  # FIX drops
    while cuda.atomic.cas(locks, 1 - first, 0, 1) != 0:  # BUG deadlock: waits  # FIX drops
        pass
    cuda.atomic.add(count, 0, 1)
    cuda.atomic.exch(locks, 1 - first, 0)  # FIX writes: cuda.atomic.exch(locks, 1, 0)
    cuda.atomic.exch(locks, first, 0)  # FIX writes: cuda.atomic.exch(locks, 0, 0)


@cuda.jit
def lock_held_over_a_barrier(lock, count):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:  # BUG deadlock: waits
        pass
    cuda.atomic.add(count, 0, 1)
    # FIX adds: cuda.atomic.exch(lock, 0, 0)
    cuda.syncthreads()  # BUG deadlock: waits
    cuda.atomic.exch(lock, 0, 0)  # FIX drops


@cuda.jit
def flag_that_nobody_sets(flag, out):
    if cuda.blockIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) < 2:  # BUG deadlock: waits
            pass
        out[0] = 1
    else:
        cuda.atomic.add(flag, 0, 1)  # FIX writes: cuda.atomic.add(flag, 0, 2)


@cuda.jit
def grid_sync_of_some_blocks(x, out):
    block = cuda.blockIdx.x
    if block < x.shape[0]:
        x[block] *= 2
        cuda.cg.this_grid().sync()  # BUG deadlock: waits  # FIX drops
        out[block] = x[x.shape[0] - 1 - block]  # FIX drops
    # FIX adds: cuda.cg.this_grid().sync()
    # FIX adds: if block < x.shape[0]:
    # FIX adds:     out[block] = x[x.shape[0] - 1 - block]


@cuda.jit
def shuffle_against_barrier(x, out):
    lane = cuda.threadIdx.x
    value = x[lane]
    if lane < 16:
        value = cuda.shfl_xor_sync(FULL, value, 1)  # BUG deadlock: waits  # FIX drops
        # FIX adds: value = cuda.shfl_xor_sync(LOWER_HALF, value, 1)
    cuda.syncthreads()  # BUG deadlock: waits
    out[lane] = value


def _warp() -> tuple:
    return floats(32), zeros(32)


PLANTED = [
    Planted("deadlock", two_locks_two_orders, 2, 1,
        lambda: (counters(2), counters(), counters()),
        "Each block holds the lock that the other one wants.",
        hangs=True,
    ),
    Planted("deadlock", lock_held_over_a_barrier, 1, 4,
        lambda: (counters(), counters()),
        "The owner waits at the barrier for threads that wait for its lock.",
        hangs=True,
    ),
    Planted("deadlock", flag_that_nobody_sets, 2, 1,
        lambda: (counters(), zeros(1)),
        "Block 0 waits for two signals, and one is ever sent.",
        hangs=True,
    ),
    Planted("deadlock", grid_sync_of_some_blocks, 4, 1,
        lambda: (floats(3), zeros(3)),
        "A grid sync waits for all blocks, also for those that have returned.",
        hangs=True,
    ),
    Planted("deadlock", shuffle_against_barrier, 1, 32, _warp,
        "Half of the warp waits in the shuffle for the other half, which waits at the barrier for the first.",
        hangs=True,
    ),
]  # fmt: skip
