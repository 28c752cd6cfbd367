"""Turn indices into addresses and back, and find the indices that are out of bounds.

An index has to lie inside each dimension of its array, not only inside the memory: `x[0, n]` of an array with rows of n
elements is out of bounds, although the memory goes on with the next row.
"""

from operator import index as integer
from typing import Any

import numpy as np

from normlab.sim.machine.memory import fresh
from normlab.sim.machine.observed import Buffer, ObservedArray


def address_of(array: ObservedArray, key: Any) -> int | None:
    """Return the address of one element, or None if `key` means a view, or an index that is not inside."""
    try:
        if type(key) is not tuple:
            (extent,), (stride,) = array.shape, array.strides
            position = integer(key)
            return array.address + position * stride if 0 <= position < extent else None
        if len(key) == 2:  # what the loop below does, in a third of its time: most indices are (row, column)
            (rows, columns), (down, across) = array.shape, array.strides
            row, column = key
            if type(row) is not int or type(column) is not int:
                row, column = integer(row), integer(column)
            inside = 0 <= row < rows and 0 <= column < columns
            return array.address + row * down + column * across if inside else None
        # Too few indices make a view: its elements are checked when they are accessed.
        if len(key) != len(array.shape):
            return None
        address = array.address
        for position, extent, stride in zip(map(integer, key), array.shape, array.strides, strict=True):
            # Each axis by itself: a column index past its row is inside the memory, and yet never meant.
            if not 0 <= position < extent:
                return None
            address += position * stride
        return address
    except (TypeError, ValueError):  # a slice; too few indices; or no integer, and then NumPy raises
        return None


def wrapped_address_of(array: ObservedArray, key: Any) -> int | None:
    """Return the address of one element as `address_of` does, counting negative indices from the end."""
    address = address_of(array, key)
    if address is not None:  # the usual case, because a kernel counts from the end only on purpose or by mistake
        return address
    positions = positions_of(array, key)
    if not all(-extent <= position < extent for _, position, extent in positions):
        return None
    return address_of(array, tuple(position % extent for _, position, extent in positions))


def positions_of(array: ObservedArray, key: Any) -> list[tuple[int, int, int]]:
    """Return (axis, position, extent of the axis) for each index in `key` that is an integer."""
    parts = key if type(key) is tuple else (key,)
    found = []
    axis = 0
    for number, part in enumerate(parts):
        if part is Ellipsis:
            # It stands for all axes that the other parts leave, so the parts after it count from the last axis.
            axis = len(array.shape) - (len(parts) - number - 1)
        elif part is not None:  # None adds an axis to the view and uses up none of the array's
            if hasattr(part, "__index__") and axis < len(array.shape):
                found.append((axis, integer(part), array.shape[axis]))
            axis += 1
    return found


def poison(array: ObservedArray, key: Any) -> np.ndarray:
    """Return what the kernel gets for an index outside: new memory that holds NaN or large integers.

    It has the shape that `array[key]` has for an index inside.
    """
    inside = tuple(0 if hasattr(part, "__index__") else part for part in (key if type(key) is tuple else (key,)))
    if 0 in (array.shape[axis] for axis, _, _ in positions_of(array, key)):  # there is no index inside
        return fresh((), array.raw.dtype)
    return fresh(np.shape(array.raw[inside]), array.raw.dtype)


def index_of(buffer: Buffer, address: int) -> tuple[int, ...]:
    """Return the index in a buffer's array of the element at `address`, or the byte's number if there is none."""
    rest = address - buffer.address
    index = [0] * buffer.array.ndim
    strides = buffer.array.strides
    # Divide by the largest stride first: what is left over belongs to the axes with smaller strides.
    for axis in sorted(range(len(index)), key=lambda axis: -abs(strides[axis])):
        if strides[axis] and 0 <= rest // strides[axis] < buffer.array.shape[axis]:
            index[axis], rest = divmod(rest, strides[axis])
    return tuple(index) if 0 <= rest < buffer.array.itemsize else (address - buffer.address,)
