"""Copy tiles of A and B from global into shared memory, for the kernels of `normlab.kernels.sgemm`.

A tile has (down, across) elements of a matrix. The threads of a block take its vectors in turn along its rows, so
neighbouring threads read neighbouring vectors. Elements outside of the matrix count as 0, which adds nothing to a
product.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda, float32, load, load_vector_into, store, store_vector_from


@cuda.jit(device=True)
def element_or_zero(array, row, column):
    """Return array[row, column] as float32, or 0 outside of the matrix."""
    value = float32(0)  # the last tiles reach past the matrix
    if row < array.shape[0] and column < array.shape[1]:
        value = load(array, (row, column))
    return value


def vectors_per_thread(down: int, across: int, width: int, threads: int) -> int:
    """Return how many vectors of a tile each thread has; raise ValueError unless all threads have the same number."""
    if down * across % (width * threads) or across % width:
        raise ValueError(
            f"a tile of {down} x {across} elements must have rows of whole vectors of {width}, and a multiple of "
            f"{threads} such vectors, one for each thread"
        )
    # As all threads have equally many, the loops over them need no condition and are unrolled.
    return down * across // (width * threads)


@cache
def tile_loader(down: int, across: int, threads: int) -> Any:
    """Return the device function `load_tile(tile, array, top, left, thread)`, which copies element by element.

    tile: shared, (down, across), float32. array: the matrix, in which the tile begins at (top, left).
    """
    elements = vectors_per_thread(down, across, 1, threads)

    @cuda.jit(device=True)
    def load_tile(tile, array, top, left, thread):
        # element v of all threads is one stretch of rows: a warp reads 32 neighbours
        for v in range(elements):
            row = (v * threads + thread) // across
            column = (v * threads + thread) % across
            store(tile, (row, column), element_or_zero(array, top + row, left + column))

    return load_tile


@cache
def tile_fetcher(down: int, across: int, width: int, threads: int) -> Any:
    """Return the device function `fetch(values, array, top, left, thread)`, which loads a thread's vectors of a tile.

    values: local, (down * across / threads,), float32. array: as in `load_tile`; its row length is a multiple of
    `width`, and its address a multiple of a vector's bytes.
    """
    # constants of the kernel: divisions by them become shifts where they are powers of two
    vectors, vectors_across = vectors_per_thread(down, across, width, threads), across // width

    @cuda.jit(device=True)
    def fetch(values, array, top, left, thread):
        for v in range(vectors):
            row = top + (v * threads + thread) // vectors_across
            column = left + (v * threads + thread) % vectors_across * width
            # one check per vector, not per element
            if row < array.shape[0] and column < array.shape[1]:
                load_vector_into(values, v * width, array, (row, column), width)
            else:  # rows are multiples of `width`: a vector lies inside or outside of the matrix as a whole
                for q in range(width):
                    values[v * width + q] = float32(0)

    return fetch


@cache
def tile_putter(down: int, across: int, width: int, threads: int) -> Any:
    """Return the device function `put(tile, first, values, thread)`, which stores `fetch`'s vectors in C order.

    tile: shared, 1-D, float32. first: the index in it at which the tile begins.
    """
    vectors, vectors_across = vectors_per_thread(down, across, width, threads), across // width

    @cuda.jit(device=True)
    def put(tile, first, values, thread):
        # the same (row, column) as in `fetch`, so each thread stores what it has loaded
        for v in range(vectors):
            row = (v * threads + thread) // vectors_across
            column = (v * threads + thread) % vectors_across * width
            store_vector_from(tile, first + row * across + column, values, v * width, width)

    return put


@cache
def transposed_putter(down: int, across: int, width: int, threads: int, stride: int) -> Any:
    """Return the device function `put(tile, first, values, thread)`, which stores `fetch`'s vectors transposed.

    The tile's columns become rows in shared memory, `stride` >= `down` elements apart. tile, first: as in
    `tile_putter`.
    """
    vectors, vectors_across = vectors_per_thread(down, across, width, threads), across // width

    @cuda.jit(device=True)
    def put(tile, first, values, thread):
        for v in range(vectors):
            row = (v * threads + thread) // vectors_across
            column = (v * threads + thread) % vectors_across * width
            # Transposed, so that later a thread reads its elements of several rows for one k as one vector.
            for q in range(width):  # neighbours of a row lie `stride` apart: one store per element, not per vector
                store(tile, first + (column + q) * stride + row, values[v * width + q])

    return put
