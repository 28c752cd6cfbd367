"""Simulate vector accesses: one instruction loads or stores several neighbouring elements.

An instruction moves at most 16 bytes per thread; a wider vector takes several instructions, one after another.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from normlab.sim.language.arrays import shape_of
from normlab.sim.language.errors import SimulationError
from normlab.sim.language.vector_types import Vector, VectorType
from normlab.sim.machine.observed import ObservedArray, plain_array, pointer

WIDEST = 16  # bytes

Part = tuple[ObservedArray, tuple[int, ...], int]  # so many neighbours in an array, from an index on


def read_vector(array: Any, index: Any, width: int) -> tuple:
    """Return the `width` elements of `array` from `index` on, along its last axis, as one load for every 16 bytes.

    Raises SimulationError where a GPU would stop: at an address that is no multiple of the size; IndexError outside.
    """
    width = int(width)
    key = vector_key(array, index, width)
    view = _inside(array, key, width)
    if view is not None and type(array) is np.ndarray:  # integers have loads of their own
        return tuple(view)
    return _elements(array, key, width)


def read_vector_into(target: Any, start: int, array: Any, index: Any, width: int, like: Any = None) -> None:
    """Do `target[start], … = read_vector(array, index, width)`; errors as there.

    `like`: an array of the dtype whose bits `array` holds as integers; the elements are converted to it.
    """
    width = int(width)
    key = vector_key(array, index, width)
    view = _inside(array, key, width)
    if view is not None and (like is not None or type(array) is np.ndarray):
        values: Any = view if like is None else view.view(like.dtype)
        # NumPy would cut a slice that leaves the array, and count a negative start from the end.
        if type(target) is np.ndarray and 0 <= start <= len(target) - width:
            target[start : start + width] = values  # a tenth of the time that one element after another takes
            return
    else:
        values = _elements(array, key, width)
        if like is not None:
            values = np.array(values, array.dtype).view(like.dtype)
    for position, value in enumerate(values, start):
        target[position] = value


def _elements(array: Any, key: tuple, width: int) -> tuple:
    """Return `width` elements, loaded one by one, or through the array's observer."""
    if isinstance(array, ObservedArray):
        return tuple(
            value
            for first, count in instructions(width, array.itemsize)
            for value in array.observer.read_vector(array, (*key[:-1], key[-1] + first), count)
        )
    return tuple(array[(*key[:-1], place)] for place in range(key[-1], key[-1] + width))


def _inside(array: Any, key: tuple, width: int) -> np.ndarray | None:
    """Return `width` elements from `key` on as a view; None if the array is observed, or ends before."""
    first = key[-1]
    # NumPy would cut a slice from -1 on at the array's end. One element at a time, each index wraps as Numba's does.
    if not isinstance(array, np.ndarray) or first < 0:
        return None
    part = slice(first, first + width)
    view = np.ndarray.__getitem__(array, part if len(key) == 1 else (*key[:-1], part))  # no integer's own load
    return view if len(view) == width else None


def write_vector(array: Any, index: Any, values: Any) -> None:
    """Store `values` into `array` from `index` on, along its last axis, as one store for every 16 bytes.

    `values`: a tuple or an array. Errors as `read_vector`.
    """
    key = vector_key(array, index, len(values))
    if isinstance(array, ObservedArray):
        # An observer is told of each instruction, because a trace counts what each one asks of memory.
        for first, count in instructions(len(values), array.itemsize):
            array.observer.write_vector(array, (*key[:-1], key[-1] + first), values[first : first + count])
        return
    view = _inside(array, key, len(values))
    if view is not None and type(array) is np.ndarray:  # integers have stores of their own
        view[...] = values
        return
    for place, value in enumerate(values, start=key[-1]):
        array[(*key[:-1], place)] = value


def write_vector_from(array: Any, index: Any, source: Any, start: int, width: int, like: Any = None) -> None:
    """Do `write_vector(array, index, (source[start], …))` of `width` elements; errors as there.

    `like`: an array of the dtype whose bits `array` holds as integers; the elements are rounded to it.
    """
    values: Any
    if type(source) is np.ndarray and 0 <= start <= len(source) - width:
        values = source[start : start + width]
    else:
        values = tuple(source[position] for position in range(start, start + width))
    if like is not None:
        values = np.asarray(values).astype(like.dtype).view(array.dtype)
    write_vector(array, index, values)


def copy_vector(target: Any, target_index: Any, source: Any, source_index: Any, width: int) -> None:
    """Do `write_vector(target, target_index, read_vector(source, source_index, width))`, with the bits unchanged."""
    values = np.array(read_vector(source, source_index, width), source.dtype)
    write_vector(target, target_index, values.view(target.dtype))


def instructions(width: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """Return the first element and the number of elements of each instruction."""
    # ld.v4.b32 moves 16 bytes: four float32, eight bfloat16, two float64.
    together = WIDEST // itemsize
    return ((first, min(together, width - first)) for first in range(0, width, together))


def vector_key(array: Any, index: Any, width: int) -> tuple[int, ...]:
    """Return the index of the first element as a tuple; raises SimulationError for an address that a GPU refuses."""
    plain = plain_array(array)
    strides, itemsize = plain.strides, plain.itemsize
    if width > 1 and strides[-1] != itemsize:  # of a single column a stride says nothing
        raise SimulationError(f"a vector access needs neighbours side by side; the array has strides {strides}")
    start = pointer(plain)
    if isinstance(index, tuple):
        key = tuple(map(int, index))
        for part, stride in zip(key, strides, strict=True):
            start += part * stride
    else:
        key, (stride,) = (int(index),), strides
        start += key[0] * stride
    size = width * itemsize
    if size > WIDEST:  # a third of the time that `min` takes
        size = WIDEST
    # The hardware raises "misaligned address" for an ld.v2 or ld.v4 that does not begin at a multiple of its size.
    if start % size:
        raise SimulationError(
            f"misaligned address: {width} elements of {plain.dtype} from index {index} on begin at a multiple of "
            f"{start & -start} bytes; one access of {size} bytes needs a multiple of that, and a shared array an "
            f"alignment={size}"
        )
    return key


def load_block(array: Any, indices: Any, shape: Any, alignment: Any = None) -> Vector:
    """Return a block of elements as a vector, as numba-cuda-mlir's `cuda.vector.load` does.

    `shape`: of the last axes; an int is a length along the last one. `alignment`: bytes that the program promises, and
    one access moves so many; without it every element is an access of its own.
    """
    extents = shape_of(shape)
    elements: list[Any] = []
    line, width, together = _lines(array, indices, extents, alignment)
    for key in line:
        for first in range(0, width, together):
            place = (*key[:-1], key[-1] + first)
            count = min(together, width - first)
            elements += read_vector(array, place, count) if alignment else [array[place]]
    kind = VectorType(plain_array(array).dtype.name, len(elements))
    return kind(*elements) if len(extents) == 1 else Vector(kind, kind(*elements).elements, extents)


def store_block(array: Any, index: Any, vector: Vector, alignment: Any = None) -> None:
    """Store a vector's elements from an index on, as numba-cuda-mlir's `cuda.vector.store` does."""
    line, width, together = _lines(array, index, vector.shape, alignment)
    for number, key in enumerate(line):
        for first in range(0, width, together):
            place = (*key[:-1], key[-1] + first)
            start = number * width + first
            values = vector.elements[start : start + min(together, width - first)]
            if alignment:
                write_vector(array, place, values)
            else:
                array[place] = values[0]


def _lines(array: Any, index: Any, extents: tuple[int, ...], alignment: Any) -> tuple[list[tuple], int, int]:
    """Return the first index of each line of a block, the line's length, and how many elements one access moves."""
    plain = plain_array(array)
    if not isinstance(index, tuple):  # counts elements, whatever the array's dimensions
        index = tuple(map(int, np.unravel_index(int(index), plain.shape)))
    outer = (0,) * (len(index) - len(extents)) + extents[:-1]
    lines = [
        (*(part + step for part, step in zip(index, steps, strict=False)), index[-1])
        for steps in np.ndindex(*(max(1, extent) for extent in outer))
    ]
    # Without a promised alignment one element at a time: a wider access could be misaligned on a GPU.
    return lines, extents[-1], int(alignment or 0) // plain.itemsize or 1


def neighbours(array: np.ndarray, key: tuple[int, ...], width: int) -> np.ndarray:
    """Return `width` elements from `key` on, along the last axis, as a view; raises IndexError outside."""
    if min(key) < 0:
        raise IndexError(f"index {key} is negative, which an instruction that moves several elements does not wrap")
    plain: Any = np.asarray(array)
    view = plain[(*key[:-1], slice(key[-1], key[-1] + width))]
    # A slice that leaves the array is cut short without an error, unlike an index.
    if len(view) < width:
        plain[(*key[:-1], key[-1] + width - 1)]  # raises, in NumPy's words
    return view
