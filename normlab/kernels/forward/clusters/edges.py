"""Work on rows that begin in the middle of a vector of 16 bytes in the cluster kernel (`ClusterLayout.anywhere`).

A thread has whole vectors of memory, as in the backward (`kernels.backward.pipelined.edges` has the picture). A row's
first and last vector also hold elements of the rows beside it. The passes leave these elements out, and store the row's
own ones in smaller pieces (`stages.row_ends`). A row's bits depend on where in a vector it begins, and so on its index.
They depend neither on n1 nor on the number of clusters.

A column's parameter lies elsewhere in a vector than the column's element. There are two ways to bring them together:

    cut      Shared memory holds the parameters as they are. For each row a thread loads three neighbouring halves of
             vectors of them, and cuts the parameters of its columns out.
    alike    A cluster takes only rows that begin at the same element of a vector. Shared memory holds the parameters
             shifted to fit these rows.
"""

from functools import cache
from typing import Any

from normlab.engine import (
    copy_async,
    cuda,
    cut_into,
    flat,
    int32,
    load_bits,
    load_bits_into,
    load_vector_into,
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
from normlab.stages.warp import lane_index


@cache
def placer(layout: ClusterLayout) -> Any:
    """Return the device function `place_of(x, share, row) -> Place`."""
    vectors, width, span, _ = layout.thread_map.loop
    most, reach = layout.thread_map.columns + width, (vectors - 1) * span + width

    @cuda.jit(device=True)
    def place_aligned(x, share, row):
        return Place(share.first, x.shape[1], 0, 0, 0, False)

    @cuda.jit(device=True)
    def place_anywhere(x, share, row):
        line, n2 = flat(x), x.shape[1]
        before = shift_of(line, row * n2, width)
        first = int32(share.first - before)
        left, begin = int32(n2 - first), row * n2 + first
        # Elements from `begin` to the matrix's end; `most` if there are more, so that the number fits in 32 bits.
        # `complete` loads a vector that reaches past the end.
        room = int32(min(line.shape[0] - begin, most))
        # The same answer for all lanes of a warp: a warp whose lanes took both ways would take the time of both.
        lane = lane_index()
        inner = first >= lane * width and left >= reach + (31 - lane) * width
        return Place(first, (before, n2), left, begin, min(left, int32(room - width + 1)), inner)

    return place_anywhere if layout.anywhere else place_aligned


@cache
def has_vector(layout: ClusterLayout, inner: bool) -> Any:
    """Return the device function `has(v, place, n2)`: True if the thread has vector v of the row.

    inner: True builds it for threads whose `Place.inner` is True, which need no conditions.
    """
    _, _, span, whole = layout.thread_map.loop

    @cuda.jit(device=True)
    def has_aligned(v, place, n2):
        return whole or place.first + v * span < n2  # no condition where the slices have all vectors

    @cuda.jit(device=True)
    def has_anywhere(v, place, n2):
        return inner or v * span < place.left

    return has_anywhere if layout.anywhere else has_aligned


@cache
def for_each_vector(layout: ClusterLayout, make: Any) -> Any:
    """Return the device function `steps(place, *rest)`: call `step(v, place, *rest)` for all of the thread's vectors.

    make: inner -> step; inner as in `has_vector`. Only few threads of a row take the steps with conditions.
    """
    vectors = layout.thread_map.vectors
    if not layout.anywhere:
        step = make(False)

        @cuda.jit(device=True)
        def steps(place, *rest):
            for v in range(vectors):
                step(v, place, *rest)

        return steps

    # with the conditions at a row's ends the compiler would leave a loop
    steps_inside, steps_at_ends = repeated(make(True), vectors), repeated(make(False), vectors)

    @cuda.jit(device=True)
    def steps_anywhere(place, *rest):
        # Two copies of the code: nearly all warps run the one without conditions.
        if place.inner:
            steps_inside(0, place, *rest)
        else:
            steps_at_ends(0, place, *rest)

    return steps_anywhere


@cache
def vector_fetcher(layout: ClusterLayout, inner: bool = False) -> Any:
    """Return the device function `fetch(v, memory, x, share, place, row)`: start to copy the thread's vector v.

    It copies no vector that reaches past an end of the matrix: see `completer`. inner: as in `has_vector`.
    """
    block_span, (_, width, span, _) = layout.block_span, layout.thread_map.loop

    @cuda.jit(device=True)
    def fetch_aligned(v, memory, x, share, place, row):
        copy_async(memory.held, share.offset + v * block_span, x, (row, place.first + v * span), width)

    @cuda.jit(device=True)
    def fetch_anywhere(v, memory, x, share, place, row):
        # `begin` is negative in the first vector of the matrix's first row alone.
        if inner or (v * span < place.limit and (v > 0 or place.begin >= 0)):
            copy_async(memory.held, share.offset + v * block_span, flat(x), place.begin + v * span, width)

    return fetch_anywhere if layout.anywhere else fetch_aligned


@cache
def completer(layout: ClusterLayout) -> Any:
    """Return the device function `complete(memory, x, share, place)`: load the elements of vectors not copied.

    `fetch` copies no vector that reaches past an end of the matrix. There are two: the first vector of the first row,
    and the last vector of the last row. Call `complete` after the wait for the thread's own copies.
    """
    anywhere, block_span, (vectors, width, span, _) = layout.anywhere, layout.block_span, layout.thread_map.loop

    @cuda.jit(device=True)
    def load_inside(memory, x, at, begin, first):
        line = flat(x)
        for k in range(width):
            # The condition is on the row: beside it the array may have no memory, and elements there are neighbours'.
            inside = 0 <= first + k < x.shape[1]
            store(memory.held, at + k, load_bits(line, begin + k) if inside else 0)

    @cuda.jit(device=True)
    def complete(memory, x, share, place):
        if anywhere and not place.inner:
            if place.begin < 0:
                load_inside(memory, x, share.offset, place.begin, place.first)
            v = (max(place.limit, 0) + span - 1) // span  # the first one that was not copied
            if place.limit <= v * span < place.left and v < vectors:
                load_inside(memory, x, share.offset + v * block_span, place.begin + v * span, place.first + v * span)

    return complete


@cache
def is_inside(layout: ClusterLayout, inner: bool) -> Any:
    """Return the device function `inside(v, place)`: True if all elements of the thread's vector v are the row's.

    inner: as in `has_vector`.
    """
    always, (_, width, span, _) = inner or not layout.anywhere, layout.thread_map.loop

    @cuda.jit(device=True)
    def inside(v, place):
        return always or ((v > 0 or place.first >= 0) and v * span + width <= place.left)

    return inside


@cache
def neighbours_filler(layout: ClusterLayout, inner: bool) -> Any:
    """Return the device function `fill(v, values, place, value)`: set elements of vector v that are a neighbour's.

    inner: as in `has_vector`.
    """
    (_, width, span, _), inside = layout.thread_map.loop, is_inside(layout, inner)

    @cuda.jit(device=True)
    def fill(v, values, place, value):
        if not inside(v, place):  # in two threads of the row
            for k in range(width):
                if (v == 0 and place.first + k < 0) or v * span + k >= place.left:
                    values[k] = value

    return fill


@cache
def vector_storer(layout: ClusterLayout, inner: bool) -> Any:
    """Return the device function `store_vector(v, values, output, place, row)`: store the thread's vector v.

    inner: as in `has_vector`.
    """
    _, width, span, _ = layout.thread_map.loop
    inside = is_inside(layout, inner)
    store_part: Any = part_storer(width) if layout.anywhere else None

    @cuda.jit(device=True)
    def store_aligned(v, values, output, place, row):
        store_vector_from(output, (row, place.first + v * span), values, 0, width)

    @cuda.jit(device=True)
    def store_anywhere(v, values, output, place, row):
        line, begin = flat(output), place.begin + v * span
        if inside(v, place):
            store_vector_from(line, begin, values, 0, width)
        else:
            store_part(values, 0, line, begin, -place.first if v == 0 else 0, place.left - v * span)

    return store_anywhere if layout.anywhere else store_aligned


@cache
def parameter_copier(layout: ClusterLayout) -> Any:
    """Return the device function `copy(memory, at, array, column)`: start to bring a vector to `memory.parameters`.

    A vector that does not begin with a vector of the parameter's memory, or that reaches past an end of the parameter,
    cannot be copied asynchronously. It is loaded at once, element by element, with zeros outside of the parameter.
    """
    width = layout.thread_map.width

    @cuda.jit(device=True)
    def copy_aligned(memory, at, array, column):
        if array is not None:
            copy_async(memory.parameters, at, array, column, width)

    @cuda.jit(device=True)
    def copy_anywhere(memory, at, array, column):
        if array is not None:
            # A parameter is a view of the caller's, and may begin anywhere in a vector.
            if shift_of(array, 0, width) == 0 and column >= 0 and column + width <= array.shape[0]:
                copy_async(memory.parameters, at, array, column, width)
            else:
                for k in range(width):
                    inside = 0 <= column + k < array.shape[0]
                    store(memory.parameters, at + k, load_bits(array, column + k) if inside else 0)

    return copy_anywhere if layout.cut else copy_aligned


@cache
def parameter_stager(layout: ClusterLayout) -> Any:
    """Return the device function `stage(memory, at, array, first)`: bring a span to shared memory, shifted.

    All threads of the block call it together. at: the thread's vector in `memory.parameters`, first: its column, which
    may be negative; neighbouring threads load neighbouring elements. A barrier must follow.
    """
    threads, width, bits = layout.threads, layout.thread_map.width, BITS[layout.parameter_bytes or layout.itemsize]

    @cuda.jit(device=True)
    def stage(memory, at, array, first):
        # Then a row needs no cuts. Those limit LayerNorm in 16 bits: 7,001 columns of bfloat16 reach 0.91 of a copy
        # instead of 0.80 (H100). But staging takes 4 us per cluster, so only many rows are worth it
        # (`layouts.spread_out`).
        some = cuda.local.array(width, bits)
        back = cuda.threadIdx.x * (width - 1)  # from the thread's vector to its element of a span in order
        if array is not None:
            for k in range(width):  # all loads are in flight before the first store waits for one
                column = int32(first - back + k * threads)
                # One comparison for both ends: as an unsigned number, a negative column is large.
                some[k] = load_bits(array, column) if uint32(column) < uint32(array.shape[0]) else 0
            for k in range(width):
                store(memory.parameters, at - back + k * threads, some[k])

    return stage


@cache
def parameter_taker(layout: ClusterLayout) -> Any:
    """Return the device function `take(target, memory, share, number, v, array, place)`: load vector v's parameters.

    number: which of the parameters in shared memory it is, 0 or 1; a constant.
    """
    width, stride, size = layout.thread_map.width, layout.parameter_stride, layout.parameter_bytes
    half = width // 2
    words = half * size // 4  # of half a vector
    held, both = 3 * words, 2 * words
    columns, stride_words = layout.parameter_columns, stride * size // 4
    columns_words = columns * size // 4

    @cuda.jit(device=True)
    def take_whole(target, memory, share, number, v, array, place):
        load_bits_into(target, 0, memory.parameters, share.gammas_at + (number * columns + v * stride), width, array)

    @cuda.jit(device=True)
    def take_cut(target, memory, share, number, v, array, place):
        # The thread's parameters lie in three neighbouring halves of vectors: a shift by whole halves is an address. So
        # only a shift within a half is left to `cut_into`, with half as many branches. If the row begins with a vector,
        # they lie in two halves, and the third load repeats the first one.
        some = cuda.local.array(held, int32)
        before = place.extent[0]
        shift = -before & (width - 1)
        begin = share.gammas_at // width * both - (both if before > 0 else 0) + shift // half * words
        last = begin + (both if before > 0 else 0)
        at = number * columns_words + v * stride_words
        load_vector_into(some, 0, memory.words, begin + at, words)
        load_vector_into(some, words, memory.words, begin + (at + words), words)
        load_vector_into(some, both, memory.words, last + at, words)
        rest = int32(shift % half)
        cut_into(target, 0, some, 0, rest, half, array)
        cut_into(target, half, some, words, rest, half, array)

    return take_cut if layout.cut else take_whole
