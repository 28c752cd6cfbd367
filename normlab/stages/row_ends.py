"""Store a part of a vector: the elements of a row that begins or ends within a vector of memory.

The other elements of that vector belong to the row before or after it.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda, store_vector_from
from normlab.stages.unroll import chosen


@cache
def part_storer(width: int) -> Any:
    """Return the device function `store_part(values, first, line, begin, before, left)`.

    It stores those of values[first], … that a row has of the vector at `line[begin]`: its first ones or its last ones.
    before: elements of the vector before the row, or 0 and less. left: elements up to the row's end. The others go in
    aligned pieces of half a vector, a quarter, …, one element: three stores at most, each an access of L2.
    """
    # A branch for each number of elements knows its pieces. To try all 14 pieces of a vector of eight took 50 to 60
    # instructions at each end of a row, of 870 for a row of 513 columns of bfloat16 (backward, H100). In a loop over
    # the pieces `values` lay in local memory, and 2,047 columns reached 0.31 of a copy instead of 0.89.
    store_from = chosen(lambda place: range_storer(place, width), 1, width - 1)
    store_up_to = chosen(lambda place: range_storer(0, place), 1, width - 1)

    @cuda.jit(device=True)
    def store_part(values, first, line, begin, before, left):
        if before > 0:
            store_from(before, values, first, line, begin)
        elif left > 0:
            store_up_to(left, values, first, line, begin)

    return store_part


@cache
def range_storer(place: int, end: int) -> Any:
    """Return the device function `store_range(values, first, line, begin)`: store elements place, …, end - 1.

    It takes as few aligned pieces as there are. `line[begin]` is a vector's first element. The elements are the
    vector's first ones (place is 0) or its last ones (end is its width).
    """
    room = end - place
    size = 1 << (room.bit_length() - 1)  # as many elements as fit …
    if place:
        size = min(size, place & -place)  # … and begin here at a multiple of their size

    @cuda.jit(device=True)
    def store_piece(values, first, line, begin):
        store_vector_from(line, begin + place, values, first + place, size)

    if size == room:
        return store_piece
    store_others = range_storer(place + size, end)

    @cuda.jit(device=True)
    def store_range(values, first, line, begin):
        store_piece(values, first, line, begin)
        store_others(values, first, line, begin)

    return store_range
