"""See rows that do not follow each other in memory as a matrix that is contiguous, without a copy."""

from math import prod
from typing import Any

import numpy as np

from normlab.host.arrays import is_dense, is_torch
from normlab.stages.row_map import RowMap


def in_place(array: Any, heads_alone: bool = True) -> tuple[Any, RowMap | None]:
    """Return an array's memory as a matrix of places as long as its rows, and the map of the rows; else (array, None).

    The array is (*leading, heads, n) with contiguous rows. A group's heads follow each other, and the groups lie
    equally far apart, by a multiple of n. An array that is contiguous, or of another kind, is returned as it is.
    heads_alone: False also takes rows that lie equally far apart, such as a slice of a matrix's columns.
    """
    if not (is_torch(array) or type(array) is np.ndarray) or len(array.shape) < 2 or not is_dense(array):
        return array, None
    size = array.element_size() if is_torch(array) else array.itemsize
    strides = array.stride() if is_torch(array) else tuple(one // size for one in array.strides)
    whole = array.is_contiguous() if is_torch(array) else array.flags.c_contiguous
    *leading, heads, columns = array.shape
    if not heads_alone and strides[-1] == 1 and strides[-2] != columns:  # a group of one row each
        leading, heads, strides = [*leading, heads], 1, (*strides[:-1], columns, 1)
    if whole or not prod(array.shape) or strides[-2:] != (columns, 1):
        return array, None
    # From the last dimension to the first: a group is `apart` elements from the next one.
    apart, groups = None, 1
    for count, stride in zip(reversed(leading), reversed(strides[:-2]), strict=True):
        if count == 1:
            continue
        if apart is None:
            apart = stride
        if stride != apart * groups:
            return array, None
        groups *= count
    if apart is None or apart % columns or apart < heads * columns:
        return array, None
    row_map = RowMap(heads, apart // columns)
    shape, steps = ((groups - 1) * row_map.places + heads, columns), (columns, 1)
    if is_torch(array):
        return array.detach().as_strided(shape, steps), row_map
    return np.lib.stride_tricks.as_strided(array, shape, tuple(size * step for step in steps)), row_map


def contiguous(array: Any) -> Any:
    """Return a contiguous array of the same kind; a copy unless it is contiguous."""
    return array.contiguous() if is_torch(array) else np.ascontiguousarray(array)
