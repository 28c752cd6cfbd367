"""Add a residual to a row in registers, and write the sum: a transformer's step between a block and the next norm."""

from functools import cache
from typing import Any

from normlab.engine import cuda, load_vector_evict_last, rounded, store_vector_from
from normlab.stages.vector import ThreadMap


@cache
def residual_adder(thread_map: ThreadMap, dtype: Any) -> Any:
    """Return the device function `add_residual(values, residual, new_residual, row, first)`.

    It replaces the thread's elements of a row by their sums with the residual's, and stores the sums. values: local,
    (thread_map.elements,), accumulator dtype. residual, new_residual: (n1, n2), aligned to `thread_map.width` elements;
    both may be None: then nothing is added. first: the column of the thread's first element.
    """
    vectors, width, span, _ = thread_map.loop
    elements, filled = thread_map.elements, thread_map.filled

    @cuda.jit(device=True)
    def add_residual(values, residual, new_residual, row, first):
        if residual is not None:
            others = cuda.local.array(elements, dtype)
            # All loads before the first store, because the compiler moves no load across a store.
            for v in range(vectors):
                column = first + v * span
                if v < filled or column < residual.shape[1]:
                    load_vector_evict_last(others, v * width, residual, (row, column), width)
            for v in range(vectors):
                column = first + v * span
                if v < filled or column < residual.shape[1]:
                    for k in range(v * width, (v + 1) * width):
                        # Rounded as it is stored, so that what is normalised is the array that the next layers see and
                        # that a backward starts from.
                        values[k] = rounded(values[k] + others[k], new_residual)
                    store_vector_from(new_residual, (row, column), values, v * width, width)

    return add_residual
