"""Values fetched ahead: a thread's own ring of vectors in shared memory, filled while it works on earlier ones.

A thread that loads a vector into registers and uses it waits for memory once a vector, and to have several on their way
costs registers, of which a wide thread has none to spare. An asynchronous copy takes none. Nobody else reads a thread's
places, so that no barrier is needed: it waits for its own copies.
"""

from functools import cache
from typing import Any

from normlab.engine import copy_async, cuda, load, load_bits_into, uint16, uint32, uint64

BITS = {2: uint16, 4: uint32, 8: uint64}  # bytes an element -> the integers that hold its bits
NARROWEST = 4  # bytes of an asynchronous copy


@cache
def fetcher(dtype: Any, itemsize: int, width: int) -> tuple[Any, Any, Any]:
    """How vectors of `width` elements go to a ring and come out of it: (kind, fetch, take).

    kind: the ring's dtype, for `cuda.shared.array`. `fetch(ring, at, array, index)`: start to bring the vector at
    `array[index]` to `ring[at]`, …; it is there after `wait_copies`. `take(values, ring, at, like)`: bring it to
    `values[0]`, … in accumulator precision; `like` has the array's dtype.

    dtype: the accumulator's. What is too narrow for an asynchronous copy is loaded at once, as an accumulator.
    """
    if itemsize * width < NARROWEST:

        @cuda.jit(device=True)
        def fetch(ring, at, array, index):
            ring[at] = load(array, index)

        @cuda.jit(device=True)
        def take(values, ring, at, like):
            values[0] = ring[at]

        return dtype, fetch, take

    @cuda.jit(device=True)
    def fetch_vector(ring, at, array, index):
        copy_async(ring, at, array, index, width)

    @cuda.jit(device=True)
    def take_vector(values, ring, at, like):
        load_bits_into(values, 0, ring, at, width, like)

    return BITS[itemsize], fetch_vector, take_vector
