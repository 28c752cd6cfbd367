"""Read and write rows that begin in the middle of a vector of 16 bytes, by whole vectors.

A row of an odd number of elements begins elsewhere in a vector than the row before it. The columns of a row are dealt
to threads in vectors, as an aligned row's are, so the bits of its sums do not depend on where the row lies. A thread's
vector of columns then lies in two vectors of memory. The thread loads both and cuts its elements out:

    memory    | . . . 0 1 2 3 4 | 5 6 7 8 9 a b c | d e f …        shift 3
    thread 0          0 1 2 3 4   5 6 7
    thread 1                            8 9 a b c   d e f

The neighbour's second vector is the thread's first: it comes from memory once, and from L1 again.

The output is written where it lies in memory: a thread keeps the first of its two vectors as it was loaded, normalises
that, and stores it as a whole. Now the parameters have to be cut out of two vectors each. Only the vectors at the two
ends of a row, which hold elements of its neighbours, too, are read and stored element by element.
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
    load_words_if,
    shift_of,
    store,
    store_vector_from,
    widen_into,
)
from normlab.stages.output import vector_normaliser
from normlab.stages.vector import ThreadMap

WORD_BYTES = 4


class ShiftedMap(NamedTuple):
    """How rows that may begin anywhere are dealt to threads.

    thread_map: of a row; it has columns for all vectors of memory that a row may touch. inner: vectors per thread that
    lie inside the row for every thread, parameters included, except the row's first. input_bytes, parameter_bytes: per
    element of x, and of weight, bias and output. alike: True if the rows of x and of the output begin alike.
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


@cache
def past_end_filler(shifted: ShiftedMap) -> Any:
    """Return the device function `fill_past_end(values, left, value)`: set the elements past the end of the row.

    values: local, (elements,). left: the number of the row's columns from the thread's first one on, int32.
    """
    vectors, width, span, _ = shifted.thread_map.loop
    inner = shifted.inner

    @cuda.jit(device=True)
    def fill_past_end(values, left, value):
        for v in range(inner, vectors):
            count = int32(left - v * span)
            if count < width:
                for k in range(width):
                    if k >= count:
                        values[v * width + k] = value

    return fill_past_end


@cache
def shifted_row_loader(shifted: ShiftedMap) -> Any:
    """Return the device function `load_row(values, words, x, row, first)`.

    values: as of `vector.row_loader`, zeros past the row's end. words: local, int32; it gets the vectors of memory in
    which the thread's vectors begin, as they lie there.
    """
    vectors, width, span, _ = shifted.thread_map.loop
    count, inner = shifted.input_words, shifted.inner
    both = 2 * count
    fill_past_end = past_end_filler(shifted)

    @cuda.jit(device=True)
    def load_row(values, words, x, row, first):
        pair = cuda.local.array(both, int32)
        line, n2 = flat(x), x.shape[1]
        at = row * n2 + first
        shift = shift_of(line, at, width)
        left = int32(n2 - first)
        # Elements from the first vector of memory on to the matrix's end; as many as matter. A vector of memory that
        # does not lie in the matrix as a whole is not read: the first and the last.
        room = int32(min(x.shape[0] * n2 - at + shift, n2 + 2 * width))
        for v in range(vectors):
            here = int32(left - v * span + shift)  # the row's elements from the vector of memory on
            lower = (v < inner or here > 0) and v * span + width <= room and (v > 0 or at >= shift)
            upper = shift > 0 and (v < inner or here > width) and v * span + 2 * width <= room
            load_words_if(pair, 0, line, at - shift + v * span, lower, width)
            load_words_if(pair, count, line, at - shift + v * span + width, upper, width)
            for k in range(count):
                words[v * count + k] = pair[k]
            cut_into(values, v * width, pair, 0, shift, width, line)
        if at < shift or (vectors - 1) * span + 2 * width > room:  # near the matrix's ends: element by element
            for v in range(vectors):
                if (v == 0 and at < shift) or v * span + 2 * width > room:
                    for k in range(width):
                        if k < int32(left - v * span):
                            values[v * width + k] = load(line, at + v * span + k)
        fill_past_end(values, left, cast(0, values))

    return load_row


@cache
def parameter_tester(shifted: ShiftedMap, v: int) -> Any:
    """Return the device function `fits(array, column, begin)`: can a vector of a parameter be cut out of two?

    column: of its first element, below 0 where a row begins within the vector. begin: of the first of the two vectors.
    It can if each of the two lies in the array as a whole or has no element of it.
    """
    width, inner = shifted.thread_map.width, shifted.inner

    @cuda.jit(device=True)
    def fits(array, column, begin):
        both = True
        if v == 0:
            both = begin >= 0 or begin == -width
        if v >= inner:
            both = both and column + 2 * width <= array.shape[0]
        return both

    return fits


@cache
def parameter_fetcher(shifted: ShiftedMap, v: int) -> Any:
    """Return the device function `fetch(pair, array, column)`: load the two vectors that vector v is cut out of."""
    width, count, fits = (
        shifted.thread_map.width,
        shifted.thread_map.width * shifted.parameter_bytes // WORD_BYTES,
        parameter_tester(shifted, v),
    )

    @cuda.jit(device=True)
    def fetch(pair, array, column):
        if array is not None:
            shift = shift_of(array, column, width)
            begin = column - shift
            wanted = fits(array, column, begin)
            load_words_if(pair, 0, array, begin, wanted and (v > 0 or begin >= 0), width)
            load_words_if(pair, count, array, begin + width, wanted and shift > 0, width)

    return fetch


@cache
def parameter_taker(shifted: ShiftedMap, v: int) -> Any:
    """Return the device function `take(target, pair, array, column)`: vector v of a parameter, after `fetch`.

    Elements outside of the row are of no meaning.
    """
    width, fits = shifted.thread_map.width, parameter_tester(shifted, v)
    edge = v == 0 or v >= shifted.inner

    @cuda.jit(device=True)
    def take(target, pair, array, column):
        if array is not None:
            shift = shift_of(array, column, width)
            cut_into(target, 0, pair, 0, shift, width, array)
            if edge and not fits(array, column, column - shift):
                for k in range(width):
                    if (v > 0 or column + k >= 0) and column + k < array.shape[0]:
                        target[k] = load(array, column + k)

    return take


@cache
def lying_loader(shifted: ShiftedMap) -> Any:
    """Return the device function `load_lying(values, v, words, x, begin, ends)`: vector v of x, as the output lies.

    begin: the index of its first element in the matrix. words: as `load_row` has left them. ends: is the row the
    matrix's first or last? Elements outside of the row are of no meaning.
    """
    width, count, inner, alike = shifted.thread_map.width, shifted.input_words, shifted.inner, shifted.alike
    both = 2 * count

    @cuda.jit(device=True)
    def load_lying(values, v, words, x, begin, ends):
        line = flat(x)
        missing = False
        if alike:
            widen_into(values, v * width, words, v * count, width, line)
            if ends and (v == 0 or v >= inner):  # what `load_row` did not read
                missing = begin < 0 or begin + width > line.shape[0]
        else:  # x again: these are elements of other vectors than the first time
            pair = cuda.local.array(both, int32)
            shift = shift_of(line, begin, width)
            if ends and (v == 0 or v >= inner):
                missing = begin < shift or begin - shift + 2 * width > line.shape[0]
            load_words_if(pair, 0, line, begin - shift, not missing, width)
            load_words_if(pair, count, line, begin - shift + width, not missing and shift > 0, width)
            cut_into(values, v * width, pair, 0, shift, width, line)
        if missing:  # at the matrix's ends
            for k in range(width):
                if 0 <= begin + k < line.shape[0]:
                    values[v * width + k] = load(line, begin + k)

    return load_lying


@cache
def lying_storer(shifted: ShiftedMap, v: int) -> Any:
    """Return the device function `store_lying(values, output, begin, column)`: store a thread's vector v.

    begin, column: of its first element, in the matrix and in the row.
    """
    width, inner = shifted.thread_map.width, shifted.inner

    @cuda.jit(device=True)
    def store_lying(values, output, begin, column):
        line, left = flat(output), int32(output.shape[1] - column)
        inside = True
        if v == 0:
            inside = column >= 0
        if v >= inner:
            inside = inside and left >= width
        if inside:
            store_vector_from(line, begin, values, v * width, width)
        else:  # an end of the row: the other elements are the neighbour's
            for k in range(width):
                if (v > 0 or column + k >= 0) and (v < inner or k < left):
                    store(line, begin + k, values[v * width + k])

    return store_lying


@cache
def vector_maker(shifted: ShiftedMap, dtype: Any, v: int) -> Any:
    """Return the device function `make(values, weight, bias, column, center, scale)`.

    It makes a thread's vector v of the output, and those before it. column: of the first vector's first element.
    """
    width, offset = shifted.thread_map.width, v * shifted.thread_map.span
    fetch, take = parameter_fetcher(shifted, v), parameter_taker(shifted, v)
    normalise_vector, both = (
        vector_normaliser(width),
        2 * shifted.thread_map.width * shifted.parameter_bytes // WORD_BYTES,
    )

    @cuda.jit(device=True)
    def make_one(values, weight, bias, column, center, scale):
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        gamma_pair = cuda.local.array(both, int32)
        beta_pair = cuda.local.array(both, int32)
        # The loads of a vector's parameters are in flight together. Those of all vectors would spill: LayerNorm of
        # float32 at 333 columns then reached 0.17 of a copy instead of 0.94.
        fetch(gamma_pair, weight, int32(column + offset))
        fetch(beta_pair, bias, int32(column + offset))
        take(gammas, gamma_pair, weight, int32(column + offset))
        take(betas, beta_pair, bias, int32(column + offset))
        normalise_vector(values, v * width, gammas, betas, weight, bias, center, scale)

    if v == 0:
        return make_one
    make_before = vector_maker(shifted, dtype, v - 1)

    @cuda.jit(device=True)
    def make(values, weight, bias, column, center, scale):
        make_before(values, weight, bias, column, center, scale)
        make_one(values, weight, bias, column, center, scale)

    return make


@cache
def vectors_storer(shifted: ShiftedMap, v: int) -> Any:
    """Return the device function `store_vectors(values, output, begin, column)`: store vector v and those before it."""
    offset, store_lying = v * shifted.thread_map.span, lying_storer(shifted, v)
    if v == 0:
        return store_lying
    store_before = vectors_storer(shifted, v - 1)

    @cuda.jit(device=True)
    def store_vectors(values, output, begin, column):
        store_before(values, output, begin, column)
        store_lying(values, output, begin + offset, column + offset)

    return store_vectors


@cache
def shifted_row_writer(shifted: ShiftedMap, dtype: Any) -> Any:
    """Return the device function `write_row(values, words, x, output, index, weight, bias, center, scale)`.

    values: local, (elements,), overwritten. words: as `load_row` has left them. index: (row, the thread's first
    column).
    """
    vectors, width, span, _ = shifted.thread_map.loop
    make, store_vectors = vector_maker(shifted, dtype, vectors - 1), vectors_storer(shifted, vectors - 1)
    load_lying = lying_loader(shifted)

    @cuda.jit(device=True)
    def write_row(values, words, x, output, index, weight, bias, center, scale):
        row, first = index
        at = row * output.shape[1] + first
        shift = shift_of(flat(output), at, width)
        column = int32(first - shift)
        ends = row == 0 or row == output.shape[0] - 1
        for v in range(vectors):
            load_lying(values, v, words, x, at - shift + v * span, ends)
        make(values, weight, bias, column, center, scale)
        store_vectors(values, output, at - shift, column)

    return write_row
