"""Do for many lanes what an engine's twins do for one: loads and stores that convert, casts, reshapes.

An engine registers one of these, or a function of its own, beside each of its twins (`register_lanes`). A function
takes the frame of the lanes first, then what the twin takes.
"""

from typing import Any

import numpy as np

from normlab.sim.vectorised.accesses import apart, load_item, store_item
from normlab.sim.vectorised.casts import to_scalar_type
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.memory import Array
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import Mixed, Vector, kind_of
from normlab.sim.vectorised.vectors import elements_from, flattened


def converted_to(frame: Frame, kind: type, value: Any) -> Any:
    """Return `kind(value)`, for a NumPy type."""
    if kind_of(value) is kind:
        return value
    return to_scalar_type(kind, value, frame.width) if type(value) in (Vector, Mixed) else kind(value)


def wide_item(frame: Frame, array: Any, index: Any) -> Any:
    """Return `array[index]` as a float64 if it is one, else as a float32."""
    if type(array) is Mixed:
        return apart(frame, wide_item, array, index)
    value = load_item(frame, array, index)
    return value if kind_of(value) is np.float64 else converted_to(frame, np.float32, value)


def wide_elements(frame: Frame, array: Any, index: Any, width: int) -> tuple:
    """Return `width` neighbours from `index` on, those of 16 bits as float32."""
    found = elements_from(frame, array, index, width)
    if array.dtype.itemsize != 2:
        return found
    return tuple(converted_to(frame, np.float32, value) for value in found)


def in_type_of(frame: Frame, value: Any, array: Any) -> Any:
    """Return a value in an array's element type."""
    if type(array) is not Array:
        raise NotVectorisedError("of a cast to the type of something other than an array")
    return converted_to(frame, array.dtype.type, value)


def nothing(frame: Frame) -> None:
    """Do nothing."""


__all__ = ["flattened", "in_type_of", "nothing", "store_item", "wide_elements", "wide_item"]
