"""Find rows that do not follow each other in memory: the heads of a query in a fused tensor of query, key and value.

    memory    | q0 q1 k0 k1 v0 v1 | q0 q1 k0 k1 v0 v1 | …        two heads, six rows of memory per token
    row         0  1                2  3

A kernel sees the memory as a matrix whose rows are as long as a head.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda


class RowMap(NamedTuple):
    """Where rows lie: groups of `heads` rows that follow each other, `stride` rows from one group to the next."""

    heads: int
    stride: int


@cache
def place_finder(row_map: RowMap | None) -> Any:
    """Return the device function `place_of(row)`: a row's index in memory, counted in rows; None: the row itself."""
    heads, gap = (1, 0) if row_map is None else (row_map.heads, row_map.stride - row_map.heads)

    @cuda.jit(device=True)
    def place_of(row):
        if gap:  # decided when the kernel is compiled
            # Each group of heads before this row's has `gap` rows of memory after it. `heads` is a constant: no real
            # division.
            return row + row // heads * gap
        return row

    return place_of
