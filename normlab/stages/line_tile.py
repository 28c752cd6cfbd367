"""Move a tile of a matrix of short rows as a line of memory, whatever its rows' length: whole vectors come and go.

Rows of 7 bfloat16 begin anywhere within a vector of 16 bytes. Eight rows together are 112 bytes, which are whole
vectors again. So a warp takes a multiple of eight rows as one line and copies its vectors to shared memory, where a row
may begin anywhere:

    vector     0               1               2               3               4               5               6
    row        0 0 0 0 0 0 0 1 1 1 1 1 1 1 2 2 2 2 2 2 2 3 3 3 3 3 3 3 4 4 4 4 4 4 4 5 5 5 5 5 5 5 6 6 6 6 6 6 6 7 7 7 …

The lanes that work on a row read it there, after a barrier.
"""

from functools import cache
from typing import Any

from normlab.engine import (
    copy_async,
    copy_bits,
    cuda,
    load_bits,
    store,
)
from normlab.stages.vector import WARP


@cache
def line_fetchers(elements: int, width: int, threads: int = WARP) -> tuple[Any, Any]:
    """Return the device functions `fetch_line(…)` and `fetch_part(…, left)`, which `threads` threads call: whole warps.

    Their other arguments are (stages, at, line, begin, thread). They start to copy `elements` elements from
    `line[begin]` on to stages[at], …. `fetch_part` is for the matrix's end: only `left` elements exist, and zeros stand
    for the others. stages: shared, of as many bits per element as `line`, which has one axis. width: elements per copy,
    a divisor of `elements`.
    """
    span = threads * width

    @cuda.jit(device=True)
    def fetch_line(stages, at, line, begin, thread):
        own = thread * width
        target, source = at + own, begin + own
        for first in range(0, elements, span):  # constant bounds: unrolled, and only the last turn has a condition
            if first + span <= elements or own < elements - first:
                # Other lanes than this one will read the elements, so the caller waits for the copies and then lets the
                # warp meet in a `syncwarp`, or where several warps move the tile together, the block in a
                # `syncthreads`.
                copy_async(stages, target + first, line, source + first, width)

    @cuda.jit(device=True)
    def fetch_part(stages, at, line, begin, thread, left):
        place = thread * width
        # First pass: whole vectors, and zeros for what lies past the matrix's end.
        while place < elements:
            if place + width <= left:
                copy_async(stages, at + place, line, begin + place, width)
            else:  # the matrix ends within this vector, or before it
                for k in range(width):
                    if place + k >= left:
                        store(stages, at + place + k, 0)
            place += span
        # Second pass: a vector in which the matrix ends is not copied as a whole, which would read past the array.
        place = left // width * width + thread
        if place < left:  # an element per thread of the vector in which the matrix ends
            store(stages, at + place, load_bits(line, begin + place))

    return fetch_line, fetch_part


@cache
def line_storers(elements: int, width: int, threads: int = WARP) -> tuple[Any, Any]:
    """Return the device functions `store_line(…)` and `store_part(…, left)`, which `threads` threads call: whole warps.

    Their other arguments are (results, at, line, begin, thread). They store results[at], …, the bits of `line`'s dtype
    in shared memory, to `line[begin]`, …: `elements` of them, or the `left` ones that exist. width: elements per copy.
    """
    span = threads * width

    @cuda.jit(device=True)
    def store_line(results, at, line, begin, thread):
        own = thread * width
        source, target = at + own, begin + own
        for first in range(0, elements, span):
            if first + span <= elements or own < elements - first:
                copy_bits(line, target + first, results, source + first, width)

    @cuda.jit(device=True)
    def store_part(results, at, line, begin, thread, left):
        place = thread * width
        while place + width <= left:
            copy_bits(line, begin + place, results, at + place, width)
            place += span
        place = left // width * width + thread
        if place < left:
            copy_bits(line, begin + place, results, at + place, 1)

    return store_line, store_part
