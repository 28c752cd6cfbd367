"""Work on rows that begin in the middle of a vector of 16 bytes in the pipelined backward.

A row of an odd number of elements begins elsewhere in a vector than the row before it: at one of eight offsets in 16
bits. Every eighth row begins at the same one, so a cluster takes every eighth row. Its threads then have whole vectors
of memory, which hold the same columns of each of its rows, and nothing has to be shifted:

    row 1     . . . 0 1 2 3 4 | 5 6 7 8 9 a b c | d e f g h . . .
    row 9     . . . 0 1 2 3 4 | 5 6 7 8 9 a b c | d e f g h . . .
              thread 0          thread 1          thread 2

The elements beside the row belong to its neighbours. They come with the copy of a row's first and last vector, and the
thread clears them in its pipeline stage: a dy of 0 adds nothing to any sum. They are not stored.

A row's bits depend on where in a vector it begins, thus on its index, but neither on n1 nor on the number of clusters.
"""

from functools import cache
from typing import Any

from normlab.engine import copy_async, cuda, flat, int32, load_bits, store, store_vector_from
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.stages.row_ends import part_storer
from normlab.stages.unroll import chosen


@cache
def fetcher(layout: PipelineLayout) -> Any:
    """Return the device function `fetch(…)` as `passes.fetcher`, which copies whole vectors of memory."""
    vectors, width, span, _ = layout.thread_map.loop
    grads_at = layout.grads_at

    @cuda.jit(device=True)
    def fetch(operands, memory, row, at, share):
        n1, n2 = operands.saved.shape
        saved, grad_output = flat(operands.saved), flat(operands.grad_output)
        if row < share.end:
            begin = row * n2 + share.first
            # Vectors that begin before this column. In the last row they also end in it: `trim` loads the other one.
            limit = int32(int32(n2 - share.first) - int32(width - 1 if row == n1 - 1 else 0))
            for v in range(vectors):
                if v * span < limit:
                    copy_async(memory.saved_stages, at + v * span, saved, begin + v * span, width)
                    copy_async(memory.grad_stages, grads_at + at + v * span, grad_output, begin + v * span, width)

    return fetch


@cache
def trimmer(layout: PipelineLayout) -> Any:
    """Return the device function `trim(operands, memory, share, row)`: clear the neighbours' elements in a stage.

    Call it once per row, after the wait for the thread's own copies.
    """
    vectors, width, span, _ = layout.thread_map.loop
    grads_at = layout.grads_at

    @cuda.jit(device=True)
    def trim_nothing(operands, memory, share, row):
        """Do nothing: rows begin at whole vectors."""

    if layout.alignments == 1:
        return trim_nothing

    def range_clearer(place: int, end: int) -> Any:
        """Return the device function `clear(memory, at)`: elements place, …, end - 1 of the vector at `at` become 0."""

        @cuda.jit(device=True)
        def clear(memory, at):
            for k in range(place, end):
                store(memory.saved_stages, at + k, 0)
                store(memory.grad_stages, grads_at + at + k, 0)

        return clear

    # one branch per number of elements instead of a comparison per element
    clear_up_to = chosen(lambda place: range_clearer(0, place), 1, width - 1)
    clear_from = chosen(lambda place: range_clearer(place, width), 1, width - 1)

    @cuda.jit(device=True)
    def load_last(operands, memory, at, begin, count):
        """Load the matrix's last elements, of which there are fewer than a vector."""
        saved, grad_output = flat(operands.saved), flat(operands.grad_output)
        for k in range(count):
            store(memory.saved_stages, at + k, load_bits(saved, begin + k))
            store(memory.grad_stages, grads_at + at + k, load_bits(grad_output, begin + k))

    @cuda.jit(device=True)
    def trim(operands, memory, share, row):
        n1, n2 = operands.saved.shape
        # The saved elements are cleared, too: a neighbour's infinity or NaN times a dy of 0 would be NaN.
        first = int32(share.first)
        if first < 0:
            clear_up_to(int32(-first), memory, row.at)  # of the row before
        left = int32(n2 - share.first)
        for v in range(vectors):
            # The row ends within this vector, which only one of the row's threads has.
            if v * span < left < v * span + width:
                # `fetch` left this vector out, because a copy of it would read past the end of the array.
                if row.number == n1 - 1:
                    load_last(operands, memory, row.at + v * span, n1 * n2 - left + v * span, left - v * span)
                clear_from(int32(left - v * span), memory, row.at + v * span)

    return trim


@cache
def storer(layout: PipelineLayout) -> Any:
    """Return the device function `store_row(values, grad_input, row, column)`: store a vector's elements of a row."""
    width, anywhere = layout.thread_map.width, layout.alignments > 1
    store_part: Any = part_storer(width) if anywhere else None

    @cuda.jit(device=True)
    def store_aligned(values, grad_input, row, column):
        store_vector_from(grad_input, (row, column), values, 0, width)

    @cuda.jit(device=True)
    def store_anywhere(values, grad_input, row, column):
        line, n2 = flat(grad_input), grad_input.shape[1]
        first, left = int32(column), int32(n2 - column)
        # All elements are the row's; otherwise it is the row's first vector or its last one.
        if first >= 0 and left >= width:
            store_vector_from(line, row * n2 + column, values, 0, width)
        else:
            store_part(values, 0, line, row * n2 + column, int32(-first), left)

    return store_anywhere if anywhere else store_aligned
