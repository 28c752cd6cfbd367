"""Read and write rows that begin in the middle of a vector of 16 bytes, by whole vectors.

A row of an odd number of elements begins elsewhere in a vector than the row before it. A thread takes whole vectors of
memory all the same. The row's first and last vector hold elements of its neighbours, too:

    memory    | . . . 0 1 2 3 4 | 5 6 7 8 9 a b c | d e f . . . . .      3 elements before the row
                thread 0          thread 1          thread 2

The neighbours' elements add nothing to a sum: they become 0, and for the squares the mean. They are not stored, so at
the two ends of a row a thread stores smaller pieces (`stages.row_ends`). A row's bits depend on where in a vector it
begins, and so on its index, but neither on n1 nor on other rows.

The output is written as it lies in memory ("lying" below).
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import (
    cast,
    cuda,
    cut_into,
    flat,
    int32,
    load,
    load_bits,
    load_bits_into,
    load_words_if,
    shift_of,
    store,
    store_vector_from,
    uint32,
    widen_into,
)
from normlab.stages.ahead import BITS
from normlab.stages.output import vector_normaliser
from normlab.stages.row_ends import part_storer
from normlab.stages.vector import ThreadMap

WORD_BYTES = 4


class ShiftedMap(NamedTuple):
    """How rows that may begin anywhere are mapped to threads.

    thread_map: of a row; it has columns for all vectors of memory that a row may touch. inner: a thread's first `inner`
    vectors lie inside the row for every thread, except the row's first vector. They need no conditions. input_bytes,
    parameter_bytes: per element of x, and of weight, bias and output. alike: True if the rows of x and of the output
    begin at the same element of a vector.
    """

    thread_map: ThreadMap
    inner: int
    input_bytes: int
    parameter_bytes: int
    alike: bool

    @property
    def input_words(self) -> int:
        """Return the words of a vector of x."""
        return self.thread_map.width * self.input_bytes // WORD_BYTES

    @property
    def staged_bytes(self) -> int:
        """Return the bytes of shared memory for one parameter."""
        return self.thread_map.columns * self.parameter_bytes


@cache
def outside_filler(shifted: ShiftedMap) -> Any:
    """Return the device function `fill_outside(values, extent, first, value)`: set elements of neighbouring rows.

    values: local, (elements,). extent: (elements of the first vector before the row, n2). first: the thread's place in
    a span.
    """
    vectors, width, span, _ = shifted.thread_map.loop
    inner = shifted.inner

    @cuda.jit(device=True)
    def fill_outside(values, extent, first, value):
        before, n2 = extent
        column = int32(first - before)
        # The row's first vector, which one thread has: a negative column counts the elements of the row before.
        if column < 0:
            for k in range(width - 1):
                if k < -column:
                    values[k] = value
        # Only these may reach past the row's end; for the vectors before them, no comparison is compiled.
        for v in range(inner, vectors):
            count = int32(int32(n2 - column) - v * span)
            if count < width:
                for k in range(width):
                    if k >= count:
                        values[v * width + k] = value

    return fill_outside


@cache
def shifted_row_loader(shifted: ShiftedMap) -> Any:
    """Return the device function `load_row(values, x, row, extent, first)`: load the thread's vectors of memory.

    values: local, (elements,), accumulator dtype; zeros for elements that are not the row's. extent, first: as of
    `outside_filler`.
    """
    vectors, width, span, _ = shifted.thread_map.loop
    count, inner = shifted.input_words, shifted.inner
    fill_outside = outside_filler(shifted)

    @cuda.jit(device=True)
    def load_row(values, x, row, extent, first):
        # The columns could be mapped to threads as an aligned row's are, and a row's bits would be the same wherever it
        # lies. But a thread would cut each vector of columns out of two vectors of memory: LayerNorm of 1,537 columns
        # of bfloat16 reached 0.85 of a copy on an H100, and now 0.91.
        words = cuda.local.array(count, int32)
        line, (before, n2) = flat(x), extent
        column = int32(first - before)
        begin = row * n2 + column
        # A vector that does not lie in the matrix as a whole is not read: the first of its first row, or the last of
        # its last row. Other vectors start less than `room` after `begin`.
        last = row == x.shape[0] - 1
        room = int32(int32(n2 - column) - int32(width - 1 if last else 0))
        for v in range(vectors):
            wanted = (v > 0 or begin >= 0) and (v < inner or v * span < room)
            load_words_if(words, 0, line, begin + v * span, wanted, width)
            widen_into(values, v * width, words, 0, width, line)
        if begin < 0 or last:  # near the matrix's ends: element by element
            for v in range(vectors):
                if (v == 0 and begin < 0) or (v >= inner and v * span >= room):
                    for k in range(width):
                        if 0 <= column + v * span + k < n2:
                            values[v * width + k] = load(line, begin + (v * span + k))
        fill_outside(values, extent, first, cast(0, values))

    return load_row


@cache
def parameter_stager(shifted: ShiftedMap, rows: int) -> Any:
    """Return the device function `stage(weight, bias, output, row)`, for blocks of so many rows that begin alike.

    It copies the parameters to dynamic shared memory, weight before bias, shifted as the output's row `row` is, with
    zeros beside them. A barrier of the block must follow before a thread reads them.
    """
    thread_map, width = shifted.thread_map, shifted.thread_map.width
    # together: elements that the block copies at a time, one per thread
    columns, bits, together = thread_map.columns, BITS[shifted.parameter_bytes], thread_map.threads * rows
    turns, whole = -(-columns // together), columns % together == 0

    @cuda.jit(device=True)
    def copy(staged, place, array, column):
        if array is not None:
            # one comparison: a negative column is a large number without a sign
            store(staged, place, load_bits(array, column) if uint32(column) < uint32(array.shape[0]) else 0)

    @cuda.jit(device=True)
    def stage(weight, bias, output, row):
        staged = cuda.shared.array(0, bits, alignment=16)
        first = cuda.threadIdx.y * thread_map.threads + cuda.threadIdx.x
        # A vector of the output needs gamma and beta from as many columns before its own as the row's place in memory
        # says. All rows of a block begin at the same place in a vector, so the block shifts the parameters once. Cut
        # out of two vectors each for every row, they took more instructions than all else: LayerNorm of 333 columns of
        # bfloat16 reached 0.51 of a copy on an H200, and now 0.74.
        shift = shift_of(flat(output), row * output.shape[1], width)
        for turn in range(turns):
            place = first + turn * together
            if whole or place < columns:
                copy(staged, place, weight, place - shift)
                copy(staged, place if weight is None else place + columns, bias, place - shift)

    return stage


@cache
def lying_loader(shifted: ShiftedMap) -> Any:
    """Return the device function `load_lying(values, v, x, begin, ends)`: vector v of x, as the output lies.

    If x lies as the output does, values has the vector already. begin: the index of its first element in the matrix.
    ends: is the row the matrix's first or last? What the vector gets for elements of other rows is not used.
    """
    width, count, inner = shifted.thread_map.width, shifted.input_words, shifted.inner
    both = 2 * count  # words of the two vectors of memory that the elements lie in

    @cuda.jit(device=True)
    def keep_lying(values, v, x, begin, ends):
        """Do nothing: the vector is as `load_row` has left it."""

    @cuda.jit(device=True)
    def load_lying(values, v, x, begin, ends):
        # x begins elsewhere in a vector than the output, as in a view with an offset: load the elements of x again, two
        # vectors of memory, and cut the output's vector out of them.
        pair = cuda.local.array(both, int32)
        line = flat(x)
        shift = shift_of(line, begin, width)
        # The pair of vectors may reach out of the array only in the matrix's first and last row.
        missing = False
        if ends and (v == 0 or v >= inner):
            missing = begin < shift or begin - shift + 2 * width > line.shape[0]
        load_words_if(pair, 0, line, begin - shift, not missing, width)
        load_words_if(pair, count, line, begin - shift + width, not missing and shift > 0, width)
        cut_into(values, v * width, pair, 0, shift, width, line)
        if missing:  # at the matrix's ends
            for k in range(width):
                if 0 <= begin + k < line.shape[0]:
                    values[v * width + k] = load(line, begin + k)

    return keep_lying if shifted.alike else load_lying


@cache
def lying_storer(shifted: ShiftedMap, v: int) -> Any:
    """Return the device function `store_lying(values, output, begin, column)`: store a thread's vector v.

    begin, column: of the first vector's first element, in the matrix and in the row.
    """
    width, inner, offset = shifted.thread_map.width, shifted.inner, v * shifted.thread_map.span
    store_part = part_storer(width)

    @cuda.jit(device=True)
    def store_lying(values, output, begin, column):
        line, left = flat(output), int32(output.shape[1] - column)
        inside = True
        if v == 0:
            inside = column >= 0
        if v >= inner:
            inside = inside and offset + width <= left
        if inside:
            store_vector_from(line, begin + offset, values, v * width, width)
        else:  # an end of the row: the other elements are the neighbour's
            before = int32(-column) if v == 0 else 0
            store_part(values, v * width, line, begin + offset, before, left - offset if v >= inner else width)

    return store_lying


@cache
def vector_writer(shifted: ShiftedMap, dtype: Any, v: int) -> Any:
    """Return the device function `write(values, x, output, index, weight, bias, center, scale)`.

    It writes a thread's vector v of the output, and those before it by calling the function for v - 1: so v is a
    constant in each, and the conditions at a row's ends stand only where they are needed. index: (the index in the
    matrix of the first vector's first element, the thread's first column, the first vector's column, is the row the
    matrix's first or last?).
    """
    thread_map, width = shifted.thread_map, shifted.thread_map.width
    offset, columns, bits = v * thread_map.span, thread_map.columns, BITS[shifted.parameter_bytes]
    load_lying, normalise_vector, store_lying = (
        lying_loader(shifted), vector_normaliser(width), lying_storer(shifted, v)
    )  # fmt: skip

    @cuda.jit(device=True)
    def write_one(values, x, output, index, weight, bias, center, scale):
        staged = cuda.shared.array(0, bits, alignment=16)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        # `first` is the thread's place in a span of vectors, so its parameters are at the same place in shared memory.
        begin, first, column, ends = index
        load_lying(values, v, x, begin + offset, ends)
        if weight is not None:
            load_bits_into(gammas, 0, staged, first + offset, width, weight)
        if bias is not None:
            load_bits_into(betas, 0, staged, first + (offset if weight is None else offset + columns), width, bias)
        normalise_vector(values, v * width, gammas, betas, weight, bias, center, scale)
        store_lying(values, output, begin, column)

    if v == 0:
        return write_one
    write_before = vector_writer(shifted, dtype, v - 1)

    @cuda.jit(device=True)
    def write(values, x, output, index, weight, bias, center, scale):
        write_before(values, x, output, index, weight, bias, center, scale)
        write_one(values, x, output, index, weight, bias, center, scale)

    return write


@cache
def shifted_row_writer(shifted: ShiftedMap, dtype: Any) -> Any:
    """Return the device function `write_row(values, x, output, index, weight, bias, center, scale)`.

    values: local, (elements,), as `load_row` has left them; overwritten. index: (row, the thread's first
    column). weight, bias: None if absent; their values are those that `stage` has left in shared memory.
    """
    write_vectors = vector_writer(shifted, dtype, shifted.thread_map.vectors - 1)
    width = shifted.thread_map.width

    @cuda.jit(device=True)
    def write_row(values, x, output, index, weight, bias, center, scale):
        row, first = index
        at = row * output.shape[1] + first
        shift = shift_of(flat(output), at, width)
        ends = row == 0 or row == output.shape[0] - 1
        # From here on in vectors of memory: the row's first vector begins `shift` elements before the row.
        place = at - shift, first, first - shift, ends
        write_vectors(values, x, output, place, weight, bias, center, scale)

    return write_row
