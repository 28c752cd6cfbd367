"""Do vector accesses of all lanes at once: the functions of machine/vector.py, element by element.

A lane whose address an instruction of that width cannot take makes the engine give up, as does one outside the array.
"""

from typing import Any

import numpy as np

from normlab.sim.machine.vector import (
    WIDEST,
    copy_vector,
    instructions,
    read_vector,
    read_vector_into,
    write_vector,
    write_vector_from,
)
from normlab.sim.vectorised.accesses import inside, load, load_item, parts_of, place_of, store, store_item, tell
from normlab.sim.vectorised.calls import register_lanes
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.memory import Array
from normlab.sim.vectorised.proof import not_negative
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import Mixed, Vector


def places_of(frame: Frame, array: Any, index: Any, width: int) -> list:
    """Return the places of `width` neighbours along the last axis, from `index` on, for each lane."""
    if type(array) is not Array:
        raise NotVectorisedError("of a vector access to something other than an array")
    parts = parts_of(index)
    if len(parts) != len(array.shape) or any(type(part) is slice for part in parts):
        raise NotVectorisedError("of a vector access with an index of other dimensions")
    for part, extent in zip(parts, array.shape, strict=True):
        # From a negative index on, an element may lie at the array's end and its neighbour at the beginning.
        not_negative(part)
        inside(part, extent)
    # The first element is inside in every lane. The last one must be in the same row.
    last = parts[-1]
    most = int(last.data.max()) if type(last) is Vector else int(last)
    if most + width > array.shape[-1]:
        raise NotVectorisedError("a vector access leaves its array")
    # In a column, or a slice with a step, neighbours are not next to each other in memory.
    if width > 1 and array.strides[-1] != array.lane_stride:
        raise NotVectorisedError("of a vector access to elements that are not side by side")
    _aligned(frame, array, index, width)
    first = place_of(frame, array, index)
    # One entry for each element of the vector: NumPy then loads that element of all lanes at once.
    return [first + position * array.strides[-1] for position in range(width)]


def _aligned(frame: Frame, array: Array, index: Any, width: int) -> None:
    """Raise NotVectorisedError unless every lane's address is a multiple of the access's size."""
    # A wider vector takes several instructions, each at a multiple of 16 bytes.
    size = min(width * array.dtype.itemsize, WIDEST)
    # A lane's elements stand apart in the store (memory.py), so there is no address to check.
    if type(array.base) is tuple and array.base[0] == "lane":
        raise NotVectorisedError("of a vector access to a local array")
    # Shared arrays: the scheduler gives each an address that is its alignment times an odd number. For an access that
    # is no wider, the alignment itself does as the address. A copy of a host's array has 1: no vector access.
    address = array.alignment
    if address is None:
        address = array.store.data.__array_interface__["data"][0]
    elif address < size:
        raise NotVectorisedError("of a vector access to a shared array that is less aligned")
    # From the beginning of the block's own array: in the chunk's store it may begin at any element.
    within = place_of(frame, array, index, based=False)
    starts = address + within * array.dtype.itemsize
    if np.any(starts % size):
        raise NotVectorisedError("a vector access is misaligned")


def elements_from(frame: Frame, array: Any, index: Any, width: Any) -> tuple:
    """Do `read_vector`."""
    places = places_of(frame, array, index, int(width))
    tell_instructions(frame, array, places, "ld")
    return tuple(load(frame, array, place) for place in places)


def tell_instructions(frame: Frame, array: Array, places: list, operation: str) -> None:
    """Tell the launch's observer of the instructions that access neighbours at `places`."""
    if array.seen is not None:
        # An instruction moves 16 bytes at most, so a wider vector is several requests.
        for first, count in instructions(len(places), array.dtype.itemsize):
            tell(frame, array, places[first], operation, count)


def elements_into(frame: Frame, target: Any, start: Any, array: Any, index: Any, width: Any, like: Any = None) -> None:
    """Do `read_vector_into`."""
    found = elements_from(frame, array, index, width)
    if like is not None:
        found = tuple(_as_bits_of(value, array.dtype, like.dtype) for value in found)
    for position, value in enumerate(found):
        store_item(frame, target, _after(start, position), value)


def _as_bits_of(value: Any, dtype: np.dtype, like: np.dtype) -> Any:
    """Return a number of an array of `dtype` as the number of the dtype `like` that has its bits."""
    if dtype.itemsize != like.itemsize:
        raise NotVectorisedError("of bits of another size")
    if type(value) is Mixed:
        raise NotVectorisedError("the lanes have numbers of several types")
    # A load holds a narrow integer in 64 bits: `astype` brings it back to the memory's dtype, whose bits are wanted.
    data = value.data if type(value) is Vector else np.array([value])
    bits = data.astype(dtype).view(like)
    return Vector(like.type, bits) if type(value) is Vector else bits[0]


def _after(start: Any, position: int) -> Any:
    if type(start) in (Vector, Mixed):
        raise NotVectorisedError("the lanes begin at different elements of a local array")
    return start + position


def elements_to(frame: Frame, array: Any, index: Any, values: Any) -> None:
    """Do `write_vector`."""
    if type(values) is not tuple:
        raise NotVectorisedError("of a vector access with something other than a tuple")
    places = places_of(frame, array, index, len(values))
    tell_instructions(frame, array, places, "st")
    for place, value in zip(places, values, strict=True):
        if type(value) is Mixed:
            raise NotVectorisedError("the lanes store numbers of several types")
        store(frame, array, place, value)


def elements_out_of(
    frame: Frame, array: Any, index: Any, source: Any, start: Any, width: Any, like: Any = None
) -> None:
    """Do `write_vector_from`."""
    values = tuple(load_item(frame, source, _after(start, position)) for position in range(int(width)))
    if like is not None:
        values = tuple(_as_bits_of(value, like.dtype, array.dtype) for value in values)  # rounded first
    elements_to(frame, array, index, values)


def elements_copied(frame: Frame, target: Any, target_index: Any, source: Any, source_index: Any, width: Any) -> None:
    """Do `copy_vector`."""
    found = elements_from(frame, source, source_index, width)
    elements_to(frame, target, target_index, tuple(_as_bits_of(one, source.dtype, target.dtype) for one in found))


def flattened(frame: Frame, array: Any) -> Array:
    """Return an array as a line of all its elements."""
    if type(array) is not Array or not array.contiguous:
        raise NotVectorisedError("of a reshaped array")
    # Contiguous in C order: the k-th element by index is the k-th in memory.
    return array.viewed((array.size,), (array.lane_stride,), array.offset)


register_lanes(copy_vector, elements_copied)
register_lanes(read_vector, elements_from)
register_lanes(read_vector_into, elements_into)
register_lanes(write_vector, elements_to)
register_lanes(write_vector_from, elements_out_of)

__all__ = ["elements_copied", "elements_from", "elements_into", "elements_out_of", "elements_to", "flattened"]
