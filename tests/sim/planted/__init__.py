"""The planted-bug collection: small kernels with one mistake each, and their mended twins.

`PLANTED` is all of them. `sanitize` finds each with the right kind and lines and finds nothing in the twins
(`tests/sim`); `tests/hardware/sanitizers.py` asks compute-sanitizer on a GPU.
"""

from . import (
    asynchronous_copies,
    barriers,
    between_blocks,
    clusters,
    deadlocks,
    lock_orders,
    missing_barriers,
    negative_indices,
    out_of_bounds,
    shared_elements,
    shuffles,
    uninitialized,
)
from .collection import Planted

__all__ = ["PLANTED", "Planted"]

PLANTED = [
    *missing_barriers.PLANTED,
    *shared_elements.PLANTED,
    *between_blocks.PLANTED,
    *uninitialized.PLANTED,
    *out_of_bounds.PLANTED,
    *negative_indices.PLANTED,
    *barriers.PLANTED,
    *shuffles.PLANTED,
    *deadlocks.PLANTED,
    *lock_orders.PLANTED,
    *asynchronous_copies.PLANTED,
    *clusters.PLANTED,
]
