"""Do for many lanes what an engine's twins do for one: loads and stores that convert, casts, reshapes.

An engine registers one of these, or a function of its own, beside each of its twins (`register_lanes`). A function
takes the frame of the lanes first, then what the twin takes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from normlab.sim.vectorised.accesses import apart, load_item, store_item
from normlab.sim.vectorised.arithmetic import truth
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.functions import call
from normlab.sim.vectorised.memory import Array, kind_of_elements
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import HOLDERS, Mixed, Vector, element, kind_of, take
from normlab.sim.vectorised.vectors import elements_from, flattened


def converted_to(frame: Frame, kind: type, value: Any) -> Any:
    """Return `kind(value)`, for a NumPy type."""
    if kind_of(value) is kind:
        return value
    # `kind(value)` of a Vector would ask it for a single number.
    return call(kind, (value,), frame.width) if type(value) in (Vector, Mixed) else kind(value)


def of_whole_arrays(twin: Callable) -> Callable:
    """Return what computes, for all lanes, a twin that takes one float32, or an array of them with the same bits."""

    # The twin may use what NumPy rounds alike in arrays and scalars (+, -, *, /, comparisons); `trusted` is not asked.
    def compute(frame: Frame, value: Any) -> Any:
        if type(value) is Mixed:
            raise NotVectorisedError("lanes have numbers of several types")
        return Vector(np.float32, twin(value.data)) if type(value) is Vector else twin(value)

    return compute


def wide_item(frame: Frame, array: Any, index: Any) -> Any:
    """Return `array[index]` as a float64 if it is one, else as a float32."""
    if type(array) is Mixed:
        # Of arrays of several dtypes the results have several types: each group of lanes loads by itself.
        return apart(frame, wide_item, array, index)
    value = load_item(frame, array, index)
    return value if kind_of(value) is np.float64 else converted_to(frame, np.float32, value)


def wide_elements(frame: Frame, array: Any, index: Any, width: int) -> tuple:
    """Return `width` neighbours from `index` on, those of 16 bits as float32."""
    found = elements_from(frame, array, index, width)
    # As the intrinsic does: a float32 or a float64 comes as it is.
    if array.dtype.itemsize != 2:
        return found
    return tuple(converted_to(frame, np.float32, value) for value in found)


def in_type_of(frame: Frame, value: Any, array: Any) -> Any:
    """Return a value in an array's element type."""
    if type(array) is not Array:
        raise NotVectorisedError("of a cast to the type of something other than an array")
    return converted_to(frame, array.dtype.type, value)


def rounded_to(frame: Frame, value: Any, array: Any) -> Any:
    """Return a value rounded to an array's element type, as a float64 if this is one, else as a float32."""
    narrow = in_type_of(frame, value, array)
    return narrow if array.dtype == np.float64 else converted_to(frame, np.float32, narrow)


def bits_of_item(frame: Frame, array: Any, index: Any) -> Any:
    """Return the bits of `array[index]` as an unsigned integer."""
    value = load_item(frame, array, index)
    # First back into the memory's dtype, because a load holds a narrow integer in 64 bits.
    bits = as_value(numbers_of(value, 1, array.dtype).view(f"u{array.dtype.itemsize}"))
    # A uniform element has become an array of one.
    return bits if type(value) is Vector else element(bits.kind, bits.data, 0)


def place_in_vector(frame: Frame, array: Any, index: Any, width: int) -> Any:
    """Return how many elements `array[index]` lies after the last multiple of `width` elements of the memory."""
    # With an alignment it is shared, or a copy of a host's array (memory.py): its address here is not the array's.
    if type(array) is not Array or array.store.space != "global" or array.alignment is not None:
        raise NotVectorisedError("of the address of something other than global memory")
    # Counted in elements from address 0 on: an array may begin in the middle of a vector.
    place = array.store.data.__array_interface__["data"][0] // array.dtype.itemsize + array.offset
    parts = index if type(index) is tuple else (index,)
    # No bounds are checked, because this is no access: threads without an element of their own ask for places outside.
    for part, stride in zip(parts, array.strides, strict=True):
        number = part if isinstance(part, (int, np.integer)) else numbers_of(part, frame.width, np.dtype(np.int64))
        place = place + number * stride
    shift = as_value(np.atleast_1d(place % width).astype(np.int32))
    return shift if isinstance(place, np.ndarray) else element(shift.kind, shift.data, 0)


def words_if(frame: Frame, words: Any, at: int, line: Any, index: Any, wanted: Any, width: int) -> None:
    """Load `width` elements as words of 32 bits into `words[at]`, … in the lanes where `wanted`, else zeros."""
    places = np.flatnonzero(np.broadcast_to(truth(wanted, frame.width), frame.width))
    # Lanes that do not want the words get zeros and load nothing: their index may lie outside the array.
    elements = np.zeros((frame.width, width), line.dtype)
    if len(places):
        found = elements_from(frame.child(places), take(line, places), take(index, places), width)
        for position, value in enumerate(found):
            elements[places, position] = numbers_of(value, len(places), line.dtype)
    # A row has a lane's elements, so after the transpose each turn has one word of every lane.
    for position, word in enumerate(elements.view(np.int32).T):
        store_item(frame, words, at + position, as_value(word))


def cut(frame: Frame, target: Any, start: int, words: Any, at: int, shift: Any, width: int, like: Any) -> None:
    """Write `width` of the elements that words hold, from number `shift` on, to `target[start]`, …."""
    shifts = numbers_of(shift, frame.width, np.dtype(np.int64))
    # Shifted elements lie in two vectors. If any lane is shifted, all lanes load the second one: it is local memory, in
    # which nothing races.
    count = (2 if shifts.any() else 1) * width * like.dtype.itemsize // 4
    held = [numbers_of(load_item(frame, words, at + place), frame.width, np.dtype(np.int32)) for place in range(count)]
    # A lane's words side by side, seen as its elements.
    elements = np.stack(held, 1).view(like.dtype)
    for position in range(width):
        store_item(frame, target, start + position, as_value(elements[np.arange(frame.width), shifts + position]))


def widen(frame: Frame, target: Any, start: int, words: Any, at: int, width: int, like: Any) -> None:
    """Write the `width` elements that words hold to `target[start]`, …."""
    cut(frame, target, start, words, at, 0, width, like)


def as_value(data: np.ndarray) -> Vector:
    """Return numbers, one for each lane, as a value of the type that a load of them has."""
    kind = kind_of_elements(data.dtype)
    # As after a load: narrow integers are held in 64 bits, and their kind remembers the width.
    return Vector(kind, data.astype(HOLDERS[kind]))


def numbers_of(value: Any, width: int, dtype: np.dtype) -> np.ndarray:
    """Return a value's numbers in a dtype, `width` of them if the lanes have one in common."""
    if type(value) is Mixed:
        raise NotVectorisedError("the lanes have numbers of several types")
    return value.data.astype(dtype) if type(value) is Vector else np.full(width, value, dtype)


# The twins of a dependent launch are registered with it: in the simulator a launch ends before the next one begins.
def nothing(frame: Frame) -> None:
    """Do nothing."""


__all__ = [
    "bits_of_item",
    "cut",
    "flattened",
    "in_type_of",
    "nothing",
    "place_in_vector",
    "rounded_to",
    "store_item",
    "wide_elements",
    "wide_item",
    "widen",
    "words_if",
]
