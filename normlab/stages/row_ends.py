"""Store a part of a vector: the elements of a row that begins or ends within a vector of memory.

The other elements of that vector belong to the row before or after it.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda, store_vector_from


@cache
def part_storer(width: int, number: int = 0) -> Any:
    """Return the device function `store_part(values, first, line, begin, before, left)`.

    It stores those of values[first], … that a row has of the vector at `line[begin]`: its first ones or its last ones.
    before: elements of the vector before the row, or 0 and less. left: elements up to the row's end. The others go in
    aligned pieces of half a vector, a quarter, …, one element: three stores at most, each an access of L2.

    number: of the first piece to try. Each piece is a function of its own, with a constant place in `values`: in a loop
    over the pieces `values` lay in local memory, and 2,047 columns of bfloat16 reached 0.31 of a copy instead of 0.89.
    """
    sizes = [width >> level for level in range(1, width.bit_length())]
    pieces = [(at, size) for size in sizes for at in range(0, width, size)]
    at, size = pieces[number]
    odd = at // size % 2 == 1
    store_others = part_storer(width, number + 1) if number + 1 < len(pieces) else None

    @cuda.jit(device=True)
    def store_piece(values, first, line, begin, before, left):
        # of each size at most one piece at either end: at odd multiples after a beginning, at even ones before an end
        if (odd and at - size < before <= at) or (not odd and at + size <= left < at + 2 * size):
            store_vector_from(line, begin + at, values, first + at, size)

    if store_others is None:
        return store_piece

    @cuda.jit(device=True)
    def store_part(values, first, line, begin, before, left):
        store_piece(values, first, line, begin, before, left)
        store_others(values, first, line, begin, before, left)

    return store_part
