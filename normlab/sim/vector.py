"""Vector accesses: several neighbouring elements by one instruction, for the twins of an engine's intrinsics.

An instruction moves 16 bytes a thread at most: a wider vector is several of them, one after another.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from normlab.sim.errors import SimulationError
from normlab.sim.observed import ObservedArray, plain_array, pointer

WIDEST = 16  # bytes


def read_vector(array: Any, index: Any, width: int) -> tuple:
    """Return the `width` elements of `array` from `index` on, along its last axis, as one load for every 16 bytes.

    Raises SimulationError where a GPU would stop: at an address that is no multiple of the size; IndexError outside.
    """
    width = int(width)
    key = vector_key(array, index, width)
    if isinstance(array, ObservedArray):
        return tuple(
            value
            for first, count in instructions(width, array.itemsize)
            for value in array.observer.read_vector(array, (*key[:-1], key[-1] + first), count)
        )
    floats = type(array) is np.ndarray  # which have no loads and stores of their own: one slice is quicker
    if floats and key[-1] >= 0:
        values = tuple(array[(*key[:-1], slice(key[-1], key[-1] + width))])
        if len(values) == width:
            return values
    return tuple(array[(*key[:-1], place)] for place in range(key[-1], key[-1] + width))


def write_vector(array: Any, index: Any, values: tuple) -> None:
    """Store `values` into `array` from `index` on, along its last axis, as one store for every 16 bytes.

    Errors as `read_vector`.
    """
    key = vector_key(array, index, len(values))
    if isinstance(array, ObservedArray):
        for first, count in instructions(len(values), array.itemsize):
            array.observer.write_vector(array, (*key[:-1], key[-1] + first), values[first : first + count])
        return
    floats = type(array) is np.ndarray
    if floats and 0 <= key[-1] <= array.shape[-1] - len(values):
        array[(*key[:-1], slice(key[-1], key[-1] + len(values)))] = values
        return
    for place, value in enumerate(values, start=key[-1]):
        array[(*key[:-1], place)] = value


def instructions(width: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """Return the first element and the number of elements of each instruction."""
    together = WIDEST // itemsize
    return ((first, min(together, width - first)) for first in range(0, width, together))


def vector_key(array: Any, index: Any, width: int) -> tuple[int, ...]:
    """Return the index of the first element as a tuple; raises SimulationError if the GPU could not go there."""
    key = tuple(map(int, index)) if isinstance(index, tuple) else (int(index),)
    plain = plain_array(array)
    if width > 1 and plain.strides[-1] != plain.itemsize:  # of a single column a stride says nothing
        raise SimulationError(f"a vector access needs neighbours side by side; the array has strides {plain.strides}")
    start = pointer(plain)
    for part, stride in zip(key, plain.strides, strict=True):
        start += part * stride
    size = min(width * plain.itemsize, WIDEST)
    if start % size:
        raise SimulationError(
            f"misaligned address: {width} elements of {plain.dtype} from index {index} on begin at a multiple of "
            f"{start & -start} bytes; one access of {size} bytes needs a multiple of that, and a shared array an "
            f"alignment={size}"
        )
    return key
