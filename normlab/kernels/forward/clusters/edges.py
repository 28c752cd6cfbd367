"""Work on rows that begin in the middle of a vector of 16 bytes in the cluster kernel (`ClusterLayout.alignments`).

As in the backward (`kernels.backward.pipelined.edges`, which has the picture), threads have whole vectors of memory,
and nothing is shifted except the parameters, on their way to shared memory. A cluster takes all its rows that begin at
one place within a vector, then those of the next place (`row_order`), and shifts the parameters once for each place.

A row's first and last vector bring elements of its neighbours along. The passes leave these out, and store the row's
own in smaller pieces (`stages.row_ends`). A row's bits depend on where in a vector it begins, thus on its index, but
neither on n1 nor on the number of clusters.
"""

from functools import cache
from typing import Any

from normlab.engine import (
    copy_async,
    cuda,
    flat,
    int32,
    load_bits,
    shift_of,
    store,
    store_vector_from,
    uint32,
)
from normlab.kernels.forward.clusters.operands import Place
from normlab.kernels.forward.layouts import ClusterLayout
from normlab.stages.ahead import BITS
from normlab.stages.row_ends import part_storer
from normlab.stages.unroll import repeated


@cache
def row_order(layout: ClusterLayout) -> tuple[Any, Any]:
    """Return the device functions `begin(n1) -> (row, stop)` and `advance(row, n1, share) -> following`.

    begin: the cluster's first row, and where it stops. Where each cluster can take every `clusters`-th row, it does:
    clusters then work on neighbouring rows at a time. Else rows are ordered by the place at which they begin, and each
    cluster takes as many neighbours of this order as the others, up to the first row of the next cluster. advance: the
    next row, or n1 and more.
    """
    alignments, together = layout.alignments, layout.cluster * layout.readers

    @cuda.jit(device=True)
    def begin_aligned(n1):
        return cuda.blockIdx.x // together, 0

    @cuda.jit(device=True)
    def advance_aligned(row, n1, share):
        return row + share.stride

    @cuda.jit(device=True)
    def quotient(number, divisor):
        # Of 32 bits, because memory holds fewer rows: a division of 64 takes 70 instructions.
        return int32(uint32(number) // uint32(divisor))

    @cuda.jit(device=True)
    def row_at(position, n1):
        """Return the row at a position of the order; n1 at its end."""
        each = quotient(n1, alignments)
        more = n1 - each * alignments  # so many places have a row more than the others
        long = more * (each + 1)
        if position >= n1:
            return n1
        if position < long:
            turn = quotient(position, each + 1)
            return (position - turn * (each + 1)) * alignments + turn
        turn = quotient(position - long, each)
        return (position - long - turn * each) * alignments + more + turn

    @cuda.jit(device=True)
    def begin_anywhere(n1):
        number, clusters = cuda.blockIdx.x // together, cuda.gridDim.x // together
        if clusters % alignments == 0 or clusters >= n1:
            return int32(number), int32(n1)
        each = quotient(n1, clusters)
        more = n1 - each * clusters  # so many clusters have a row more than the others
        first = number * each + min(number, more)
        return row_at(first, n1), row_at(first + each + (number < more), n1)

    @cuda.jit(device=True)
    def advance_anywhere(row, n1, share):
        if share.stride % alignments == 0 or share.stride >= n1:
            return row + share.stride
        following = row + alignments
        if following >= n1:  # on to the next place
            following = row % alignments + 1
            if following == alignments:
                following = n1
        return n1 if following == share.stop else following

    return (begin_anywhere, advance_anywhere) if alignments else (begin_aligned, advance_aligned)


@cache
def placer(layout: ClusterLayout) -> Any:
    """Return the device function `place_of(x, share, row) -> Place`."""
    width, most = layout.thread_map.width, layout.thread_map.columns + layout.thread_map.width

    @cuda.jit(device=True)
    def place_aligned(x, share, row):
        return Place(share.first, x.shape[1], 0, 0, 0)

    @cuda.jit(device=True)
    def place_anywhere(x, share, row):
        line, n2 = flat(x), x.shape[1]
        before = shift_of(line, row * n2, width)
        first = int32(share.first - before)
        left, begin = int32(n2 - first), row * n2 + first
        # Elements up to the matrix's end, as many as matter. `complete` loads a vector that reaches past it.
        room = int32(min(line.shape[0] - begin, most))
        return Place(first, (before, n2), left, begin, min(left, int32(room - width + 1)))

    return place_anywhere if layout.alignments else place_aligned


@cache
def looker(layout: ClusterLayout) -> Any:
    """Return the device function `has(v, place, n2)`: True if the thread has vector v of the row."""
    _, _, span, whole = layout.thread_map.loop

    @cuda.jit(device=True)
    def has_aligned(v, place, n2):
        return whole or place.first + v * span < n2  # no condition where the slices have all vectors

    @cuda.jit(device=True)
    def has_anywhere(v, place, n2):
        return v * span < place.left

    return has_anywhere if layout.alignments else has_aligned


@cache
def for_each_vector(layout: ClusterLayout, step: Any) -> Any:
    """Return the device function `steps(v, *rest)`: call `step(v, *rest)` for all of the thread's vectors; v: 0."""
    vectors = layout.thread_map.vectors
    if layout.alignments:  # with the conditions at a row's ends the compiler would leave a loop
        return repeated(step, vectors)

    @cuda.jit(device=True)
    def steps(v, *rest):
        for each in range(vectors):
            step(v + each, *rest)

    return steps


@cache
def vector_fetcher(layout: ClusterLayout) -> Any:
    """Return the device function `fetch(v, memory, x, share, place, row)`: start to copy the thread's vector v."""
    block_span, (_, width, span, _) = layout.block_span, layout.thread_map.loop

    @cuda.jit(device=True)
    def fetch_aligned(v, memory, x, share, place, row):
        copy_async(memory.held, share.offset + v * block_span, x, (row, place.first + v * span), width)

    @cuda.jit(device=True)
    def fetch_anywhere(v, memory, x, share, place, row):
        if v * span < place.limit and (v > 0 or place.begin >= 0):
            copy_async(memory.held, share.offset + v * block_span, flat(x), place.begin + v * span, width)

    return fetch_anywhere if layout.alignments else fetch_aligned


@cache
def completer(layout: ClusterLayout) -> Any:
    """Return the device function `complete(memory, x, share, place)`: load elements of vectors that were not copied.

    Such a vector reaches past an end of the matrix: it is the first row's first one, or the last row's last one. Call
    `complete` after the wait for the thread's own copies.
    """
    alignments, block_span, (vectors, width, span, _) = layout.alignments, layout.block_span, layout.thread_map.loop

    @cuda.jit(device=True)
    def load_inside(memory, x, at, begin, first):
        line = flat(x)
        for k in range(width):
            inside = 0 <= first + k < x.shape[1]
            store(memory.held, at + k, load_bits(line, begin + k) if inside else 0)

    @cuda.jit(device=True)
    def complete(memory, x, share, place):
        if alignments:
            if place.begin < 0:
                load_inside(memory, x, share.offset, place.begin, place.first)
            v = (max(place.limit, 0) + span - 1) // span  # the first one that was not copied
            if place.limit <= v * span < place.left and v < vectors:
                load_inside(memory, x, share.offset + v * block_span, place.begin + v * span, place.first + v * span)

    return complete


@cache
def inside_teller(layout: ClusterLayout) -> Any:
    """Return the device function `inside(v, place)`: True if all elements of the thread's vector v are the row's."""
    alignments, (_, width, span, _) = layout.alignments, layout.thread_map.loop

    @cuda.jit(device=True)
    def inside(v, place):
        return not alignments or ((v > 0 or place.first >= 0) and v * span + width <= place.left)

    return inside


@cache
def neighbours_filler(layout: ClusterLayout) -> Any:
    """Return the device function `fill(v, values, at, place, value)`: set the elements that are not the row's.

    values[at], …: the thread's vector v.
    """
    (_, width, span, _), inside = layout.thread_map.loop, inside_teller(layout)

    @cuda.jit(device=True)
    def fill(v, values, at, place, value):
        if not inside(v, place):  # in two threads of the row
            for k in range(width):
                if (v == 0 and place.first + k < 0) or v * span + k >= place.left:
                    values[at + k] = value

    return fill


@cache
def vector_storer(layout: ClusterLayout) -> Any:
    """Return the device function `store_vector(v, values, first, output, place, row)`: store the thread's vector v.

    values[first], …: its elements.
    """
    _, width, span, _ = layout.thread_map.loop
    inside = inside_teller(layout)
    store_part: Any = part_storer(width) if layout.alignments else None

    @cuda.jit(device=True)
    def store_aligned(v, values, first, output, place, row):
        store_vector_from(output, (row, place.first + v * span), values, first, width)

    @cuda.jit(device=True)
    def store_anywhere(v, values, first, output, place, row):
        line, begin = flat(output), place.begin + v * span
        if inside(v, place):
            store_vector_from(line, begin, values, first, width)
        else:
            store_part(values, first, line, begin, -place.first if v == 0 else 0, place.left - v * span)

    return store_anywhere if layout.alignments else store_aligned


@cache
def parameter_stager(layout: ClusterLayout) -> Any:
    """Return the device function `stage(memory, weight, bias, share, place, v)`: bring a span to shared memory.

    All threads of the block call it together for their vectors v of the parameters; a barrier must follow.
    """
    threads, width, bits = layout.threads, layout.thread_map.width, BITS[layout.parameter_bytes or layout.itemsize]
    block_span, span, both = layout.block_span, layout.thread_map.span, 2 * layout.thread_map.width

    @cuda.jit(device=True)
    def load_some(some, start, array, first):
        if array is not None:
            for k in range(width):  # neighbouring threads load neighbouring elements
                column = int32(first + k * threads)
                # one comparison: a negative column is a large number without a sign
                some[start + k] = load_bits(array, column) if uint32(column) < uint32(array.shape[0]) else 0

    @cuda.jit(device=True)
    def store_some(memory, at, some, start, array):
        if array is not None:
            for k in range(width):
                store(memory.parameters, at + k * threads, some[start + k])

    @cuda.jit(device=True)
    def stage(memory, weight, bias, share, place, v):
        some = cuda.local.array(both, bits)
        back = cuda.threadIdx.x * (width - 1)  # from the thread's vector to its element of a span in order
        first = int32(place.first + v * span - back)
        load_some(some, 0, weight, first)  # all loads are in flight before the first store waits
        load_some(some, width, bias, first)
        store_some(memory, share.gammas_at + v * block_span - back, some, 0, weight)
        store_some(memory, share.betas_at + v * block_span - back, some, width, bias)

    return stage
