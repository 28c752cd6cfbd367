"""Locks taken in orders that can end in a deadlock, though the run may get through."""

from numba import cuda

from .collection import Planted, counters


@cuda.jit(device=True)
def take(locks, number):
    while cuda.atomic.cas(locks, number, 0, 1) != 0:
        pass


@cuda.jit
def locks_in_both_orders(locks, count):
    if cuda.blockIdx.x == 0:  # FIX writes: take(locks, 0)
        while cuda.atomic.cas(locks, 0, 0, 1) != 0:  # FIX drops
            pass  # FIX drops
        while cuda.atomic.cas(locks, 1, 0, 1) != 0:  # BUG lock-order: takes the second lock  # FIX drops
            pass  # FIX drops
    else:  # FIX writes: take(locks, 1)
        while cuda.atomic.cas(locks, 1, 0, 1) != 0:  # FIX drops
            pass  # FIX drops
        while cuda.atomic.cas(locks, 0, 0, 1) != 0:  # BUG lock-order: takes the second lock  # FIX drops
            pass  # FIX drops
    cuda.atomic.add(count, 0, 1)
    cuda.atomic.exch(locks, 0, 0)
    cuda.atomic.exch(locks, 1, 0)


@cuda.jit
def philosophers(forks, meals):
    left = cuda.blockIdx.x
    right = (left + 1) % cuda.gridDim.x
    while cuda.atomic.exch(forks, left, 1) != 0:  # FIX writes: take(forks, min(left, right))
        pass  # FIX drops
    while cuda.atomic.exch(forks, right, 1) != 0:  # BUG lock-order: takes the second lock  # FIX drops
        pass  # FIX drops
    # FIX adds: take(forks, max(left, right))
    cuda.atomic.add(meals, left, 1)
    cuda.atomic.exch(forks, right, 0)
    cuda.atomic.exch(forks, left, 0)


PLANTED = [
    Planted("lock-order", locks_in_both_orders, 2, 1,
        lambda: (counters(2), counters()),
        "If both blocks get their first lock before either gets its second, both wait for ever.",
        hangs=True,
    ),
    Planted("lock-order", philosophers, 5, 1,
        lambda: (counters(5), counters(5)),
        "If every block holds its left fork, no block gets its right one.",
        hangs=True,
    ),
]  # fmt: skip
