"""Vector accesses: several neighbouring elements by one instruction, for the twins of an engine's intrinsics."""

from typing import Any

import numpy as np

from normlab.sim.errors import SimulationError
from normlab.sim.observed import ObservedArray, pointer


def read_vector(array: Any, index: Any, width: int) -> tuple:
    """Return the `width` elements of `array` from `index` on, along its last axis, as one load.

    Raises SimulationError where a GPU would stop: at an address that is no multiple of the size; IndexError outside.
    """
    key = _checked(array, index, width)
    if isinstance(array, ObservedArray):
        return tuple(array.observer.read_vector(array, key, width))
    return tuple(array[(*key[:-1], place)] for place in range(key[-1], key[-1] + width))


def write_vector(array: Any, index: Any, values: tuple) -> None:
    """Store `values` into `array` from `index` on, along its last axis, as one store; errors as `read_vector`."""
    key = _checked(array, index, len(values))
    if isinstance(array, ObservedArray):
        array.observer.write_vector(array, key, values)
        return
    for place, value in enumerate(values, start=key[-1]):
        array[(*key[:-1], place)] = value


def _checked(array: Any, index: Any, width: int) -> tuple[int, ...]:
    """Return the index of the first element as a tuple; raises SimulationError if the GPU could not go there."""
    key = tuple(int(part) for part in (index if isinstance(index, tuple) else (index,)))
    plain: np.ndarray = array.raw if isinstance(array, ObservedArray) else array
    if plain.strides[-1] != plain.itemsize:
        raise SimulationError(f"a vector access needs neighbours side by side; the array has strides {plain.strides}")
    start = pointer(plain) + sum(part * stride for part, stride in zip(key, plain.strides, strict=True))
    if start % (width * plain.itemsize):
        raise SimulationError(
            f"misaligned address: {width} elements of {plain.dtype} from index {index} on begin at a multiple of "
            f"{start & -start} bytes; one access of {width * plain.itemsize} bytes needs a multiple of that"
        )
    return key
