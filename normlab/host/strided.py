"""View strided rows, such as the heads of a query in a fused tensor, as rows of a contiguous matrix, without a copy."""

from math import prod
from typing import Any

import numpy as np

from normlab.host.arrays import Backend, is_dense, is_torch
from normlab.stages.row_map import RowMap


def strided_rows(array: Any, any_rows: bool = False) -> tuple[Any, RowMap | None]:
    """Return the memory from an array's first to its last row as a matrix (rows, n), and the map of the array's rows.

    The array is (*leading, heads, n) with contiguous rows. The heads of a group, such as a token's, follow each other,
    and the groups lie equally far apart, by a multiple of n. Any other array, and a contiguous one, gives (array,
    None). any_rows: True also takes single rows that lie equally far apart, such as a slice of a matrix's columns.
    """
    if not (is_torch(array) or type(array) is np.ndarray) or len(array.shape) < 2 or not is_dense(array):
        return array, None
    if is_torch(array):
        size, strides, whole = array.element_size(), array.stride(), array.is_contiguous()
    else:
        size, whole = array.itemsize, array.flags.c_contiguous
        if any(one % size for one in array.strides):  # a packed record's field
            return array, None
        strides = tuple(one // size for one in array.strides)
    *leading, heads, columns = array.shape
    if any_rows and strides[-1] == 1 and strides[-2] != columns:  # a group of one row each
        leading, heads, strides = [*leading, heads], 1, (*strides[:-1], columns, 1)
    if whole or not prod(array.shape) or strides[-2:] != (columns, 1):
        return array, None
    # From the last leading dimension to the first: are all groups `apart` elements from the next one?
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
    shape, steps = ((groups - 1) * row_map.stride + heads, columns), (columns, 1)
    if is_torch(array):
        return array.detach().as_strided(shape, steps), row_map
    return np.lib.stride_tricks.as_strided(array, shape, tuple(size * step for step in steps)), row_map


def matrix_of(backend: Backend, rows: Any) -> Any:
    """Return what `strided_rows` has returned, (*leading, n), as an operand of two dimensions."""
    *leading, columns = rows.shape
    return backend.operand(rows, (prod(leading), columns))


def contiguous(array: Any) -> Any:
    """Return the array itself if it is contiguous, else a contiguous copy of the same kind."""
    return array.contiguous() if is_torch(array) else np.ascontiguousarray(array)
