"""Tiles of A and B on their way from global into shared memory, for the kernels of `normlab.kernels.sgemm`.

A tile is (down, across) elements of a matrix, dealt to the threads of a block vector by vector along its rows, so that
neighbouring threads read neighbours. What lies outside of the matrix counts as zeros, which add nothing to a product.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda, float32, load, load_vector_into, store, store_vector_from


@cuda.jit(device=True)
def element_or_zero(array, row, column):
    """array[row, column], float32; 0 outside of the matrix."""
    value = float32(0)
    if row < array.shape[0] and column < array.shape[1]:
        value = load(array, (row, column))
    return value


@cache
def tile_loader(down: int, across: int, threads: int) -> Any:
    """The device function `load_tile(tile, array, top, left, thread)`: element by element into shared memory.

    tile: shared, (down, across), float32; array: the matrix, of which the tile begins at (top, left).
    """
    elements = down * across // threads

    @cuda.jit(device=True)
    def load_tile(tile, array, top, left, thread):
        for v in range(elements):
            row = (v * threads + thread) // across
            column = (v * threads + thread) % across
            store(tile, (row, column), element_or_zero(array, top + row, left + column))

    return load_tile


@cache
def tile_fetcher(down: int, across: int, width: int, threads: int) -> Any:
    """The device function `fetch(values, array, top, left, thread)`: this thread's vectors of a tile, into registers.

    values: local, (down * across / threads,), float32. array: as in `load_tile`; `width` divides its row length, and
    its address a vector's bytes.
    """
    vectors, vectors_across = down * across // (width * threads), across // width

    @cuda.jit(device=True)
    def fetch(values, array, top, left, thread):
        for v in range(vectors):
            row = top + (v * threads + thread) // vectors_across
            column = left + (v * threads + thread) % vectors_across * width
            if row < array.shape[0] and column < array.shape[1]:
                load_vector_into(values, v * width, array, (row, column), width)
            else:
                for q in range(width):
                    values[v * width + q] = float32(0)

    return fetch


@cache
def tile_putter(down: int, across: int, width: int, threads: int) -> Any:
    """The device function `put(tile, first, values, thread)`: what `fetch` has fetched, into shared memory, in C order.

    tile: shared, 1-D, float32; `first`: where in there the tile begins.
    """
    vectors, vectors_across = down * across // (width * threads), across // width

    @cuda.jit(device=True)
    def put(tile, first, values, thread):
        for v in range(vectors):
            row = (v * threads + thread) // vectors_across
            column = (v * threads + thread) % vectors_across * width
            store_vector_from(tile, first + row * across + column, values, v * width, width)

    return put


@cache
def transposed_putter(down: int, across: int, width: int, threads: int, stride: int) -> Any:
    """The device function `put(tile, first, values, thread)`, as `tile_putter`'s, but the tile's columns become rows.

    stride: elements from one of those to the next, at least `down`. Neighbours along a row of the matrix then lie that
    far apart: four stores for a vector of four.
    """
    vectors, vectors_across = down * across // (width * threads), across // width

    @cuda.jit(device=True)
    def put(tile, first, values, thread):
        for v in range(vectors):
            row = (v * threads + thread) // vectors_across
            column = (v * threads + thread) % vectors_across * width
            for q in range(width):
                store(tile, first + (column + q) * stride + row, values[v * width + q])

    return put
