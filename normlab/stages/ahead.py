"""Prefetch vectors into shared memory: each thread fills its own pipeline stages while it works on earlier vectors.

A thread that loads a vector into registers and uses it at once waits for memory once per vector. Several loads in
flight need registers for each of them. An asynchronous copy to shared memory needs none. Each thread reads only the
slots that it filled itself, so it waits for its own copies and needs no barrier.
"""

from functools import cache
from typing import Any

from normlab.engine import copy_async, cuda, load, load_bits_into, uint16, uint32, uint64

BITS = {2: uint16, 4: uint32, 8: uint64}  # bytes per element -> the integer dtype that holds its bits
NARROWEST = 4  # bytes that an asynchronous copy moves at least


@cache
def fetcher(dtype: Any, itemsize: int, width: int) -> tuple[Any, Any, Any]:
    """Return (kind, fetch, take), which move vectors of `width` elements into pipeline stages and out of them.

    kind: the dtype of the stages' memory, for `cuda.shared.array`.
    `fetch(stages, at, array, index)` starts to copy the vector at `array[index]` to `stages[at]`, …; it has arrived
    after `wait_copies`.
    `take(values, stages, at, like)` converts it to the accumulator's dtype and writes it to `values[0]`, …; `like` has
    the array's dtype.

    dtype: the accumulator's. A vector narrower than an asynchronous copy is loaded and converted at once.
    """
    if itemsize * width < NARROWEST:  # one element of 2 bytes: the thread waits for it here

        @cuda.jit(device=True)
        def fetch(stages, at, array, index):
            stages[at] = load(array, index)

        @cuda.jit(device=True)
        def take(values, stages, at, like):
            values[0] = stages[at]

        return dtype, fetch, take

    # The copy moves bits, not values, so the dtype is an integer's and `take` converts.
    @cuda.jit(device=True)
    def fetch_vector(stages, at, array, index):
        copy_async(stages, at, array, index, width)

    @cuda.jit(device=True)
    def take_vector(values, stages, at, like):
        load_bits_into(values, 0, stages, at, width, like)

    return BITS[itemsize], fetch_vector, take_vector
