"""Add up the columns' sums at the end of the pipelined backward.

Each block adds up its row groups' partial sums (`finish`). What follows depends on the launch:

- A launch of one cluster: the sums are the gradients. If x̂ is recomputed, those of the weight are divided by gamma.
- A launch of several clusters: each writes a row of partial sums. A second kernel adds up these rows and divides.

The row groups' sums lie in the memory of the pipeline stages, which are no longer used. A launch of few rows has other
blocks for the columns (`beside`).
"""

from functools import cache
from typing import Any

from normlab.engine import (
    cluster_arrive_shared,
    cluster_wait,
    cuda,
    launch_dependents,
    load,
    store,
    store_vector_from,
    wait_copies,
)
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import ACCUMULATOR_BYTES, PipelineLayout
from normlab.kernels.backward.pipelined.parameters import readers
from normlab.stages.vector import BYTES, WARP

MANY_GROUPS = 8  # row groups per block from which all threads add up: the first group's few threads would take 3 us


@cache
def epilogue(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `add_up_columns(operands, memory, share, sums, gradients)`."""
    sums_weight, sums_bias = kind.sums
    # With a prefetch of 0, blocks may still read the last row's sums from this block's shared memory, so a barrier must
    # follow before this block ends. With a prefetch of 1 the last turn has no row: its barrier came after that reading.
    reads_last_sums = layout.blocks > 1 and layout.prefetch == 0
    finish_weight = finisher(layout, kind, dtype, kind.memory_efficient)
    finish_bias = finisher(layout, kind, dtype, False)

    @cuda.jit(device=True)
    def add_up_columns(operands, memory, share, sums, gradients):
        if reads_last_sums:
            cluster_arrive_shared()  # this block has read the last row's sums from the other blocks
        # The final sums' blocks may start on multiprocessors that this kernel leaves. Let in before the first row, they
        # made gated rows of 4,096 columns take 126.7 us instead of 124.9 on an H100.
        launch_dependents()
        wait_copies(0)  # no copy may still write to this memory
        shared = cuda.shared.array(0, dtype, alignment=16)
        # One gradient after the other, in the same memory: both at once would need twice as much.
        if sums_weight:
            finish_weight(shared, sums.weight, operands, memory, share, gradients.grad_weight, gradients.part_weight)
        if sums_bias:
            finish_bias(shared, sums.bias, operands, memory, share, gradients.grad_bias, gradients.part_bias)
        if reads_last_sums:
            cluster_wait()  # the exchange buffer must live until the other blocks have read their last sums

    return add_up_columns


@cache
def finisher(layout: PipelineLayout, kind: Kind, dtype: Any, divide: bool) -> Any:
    """Return the device function `finish(shared, mine, operands, memory, share, gradient, partials)`.

    It adds up the block's sums for a gradient. shared: the memory for sums. mine: the thread's sums. gradient and
    partials: where the result goes, see `writer`.

    divide: divide gradients, but no partial sums, by the clamped gamma, as the first pass has not.
    """
    thread_map, rows = layout.thread_map, layout.rows
    threads, vectors, width, whole = thread_map
    elements, span = thread_map.elements, thread_map.span
    by_all, add_up = rows >= MANY_GROUPS, groups_adder(layout)
    divide_sums = divider(layout, kind, dtype)
    first = 0 if by_all else 1  # the first row group that leaves its sums
    apart, anywhere = sums_apart(layout), layout.alignments > 1
    line_at = (rows - first) * apart  # where a line of the block's sums lies, after those of the row groups
    write_sums, write_line = writer(kind, width), line_writer(layout)

    @cuda.jit(device=True)
    def finish(shared, mine, operands, memory, share, gradient, partials):
        totals = cuda.local.array(width, dtype)
        if rows > 1 or anywhere:
            cuda.syncthreads()  # all threads have read this memory: pipeline stages, or the other gradient's sums
        if rows > 1:
            if share.group >= first:
                for k in range(elements):  # a warp's threads write to different banks
                    shared[(share.group - first) * apart + k * threads + share.thread] = mine[k]
            cuda.syncthreads()  # all row groups' sums are in shared memory before a thread adds them up
        if by_all:
            add_up(shared)
            cuda.syncthreads()  # the block's sums are in shared memory before the first row group reads them
        if share.group == 0:
            if by_all:
                for k in range(elements):
                    mine[k] = shared[k * threads + share.thread]
            # A loop of its own. Inside the loop over vectors it kept the compiler from unrolling that: `mine` lay in
            # local memory from the first row on (192 bytes per thread at n2 = 384 in bfloat16), or all loads came
            # first (255 registers at n2 = 768, which now takes 142).
            for other in range(0 if by_all else rows - 1):
                for k in range(elements):
                    mine[k] += shared[other * apart + k * threads + share.thread]
            if divide and partials.shape[0] == 1:  # else the last kernel divides
                divide_sums(mine, operands, memory, share)
            # Round once and store, vector by vector.
            for v in range(vectors):
                column = share.first + v * span
                if whole or column < gradient.shape[0]:
                    for k in range(width):
                        totals[k] = mine[v * width + k]
                    if anywhere:
                        store_vector_from(shared, line_at + share.offset + v * span, totals, 0, width)
                    else:
                        write_sums(totals, gradient, partials, share.line, column)
        if anywhere:
            cuda.syncthreads()  # the line is in shared memory before its neighbours' threads store it
            write_line(shared, line_at, gradient, partials, share)

    return finish


@cache
def divider(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `divide_sums(mine, operands, memory, share)`: divide by the clamped gammas."""
    vectors, width, span, whole = layout.thread_map.loop
    _, load_clamped, _, _ = readers(layout, kind)

    @cuda.jit(device=True)
    def divide_sums(mine, operands, memory, share):
        gammas = cuda.local.array(width, dtype)
        for v in range(vectors):
            if whole or share.first + v * span < operands.grad_input.shape[1]:
                load_clamped(gammas, memory.parameters, v, share.offset, operands.weight, operands.eps)
                for k in range(width):
                    mine[v * width + k] = mine[v * width + k] / gammas[k]

    return divide_sums


def sums_apart(layout: PipelineLayout) -> int:
    """Return how far apart the sums of two row groups lie in shared memory, in values."""
    # The lanes of a warp write at once. Without a gap, lanes of several short rows would write to the same banks: heads
    # of 64 columns backward took 0.5 us longer on an H100.
    threads = layout.thread_map.threads
    return layout.thread_map.columns + (threads if threads < WARP else 0)


@cache
def groups_adder(layout: PipelineLayout) -> Any:
    """Return the device function `add_up(shared)`: add all row groups' sums to the first one's, with all threads."""
    columns, rows, threads, apart = layout.thread_map.columns, layout.rows, layout.threads, sums_apart(layout)

    @cuda.jit(device=True)
    def add_up(shared):
        place = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        while place < columns:
            total = load(shared, place)
            for group in range(1, rows):
                total += load(shared, group * apart + place)
            store(shared, place, total)
            place += threads

    return add_up


@cache
def writer(kind: Kind, width: int) -> Any:
    """Return the device function `write_sums(totals, gradient, partials, line, column)`.

    It stores a vector of a cluster's sums in a line of `partials`, or in `gradient` if there is one line.
    """
    together = kind.together

    @cuda.jit(device=True)
    def write_sums(totals, gradient, partials, line, column):
        if partials.shape[0] > 1:
            store_vector_from(partials, (line, column), totals, 0, width)
        else:  # the gradient may allow narrower stores than the rows: `together` elements
            for k in range(0, width, together):
                store_vector_from(gradient, column + k, totals, k, together)

    return write_sums


@cache
def line_writer(layout: PipelineLayout) -> Any:
    """Return the device function `write_line(shared, at, gradient, partials, share)`, for rows that begin anywhere.

    It stores the block's sums, which begin at shared[at], where `write_sums` would: neighbouring threads neighbouring
    columns, because no vector of them begins with a vector of memory. After the last column it stores zeros, up to
    the end of the line of `partials`.
    """
    columns, threads, padding = layout.thread_map.columns, layout.threads, BYTES // ACCUMULATOR_BYTES

    @cuda.jit(device=True)
    def write_line(shared, at, gradient, partials, share):
        several = partials.shape[0] > 1
        place = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        while place < columns + padding:
            column = share.first - share.offset + place
            if column >= gradient.shape[0]:
                if several and column < partials.shape[1]:
                    store(partials, (share.line, column), 0)
            elif column >= 0 and place < columns:
                total = load(shared, at + place)
                if several:
                    store(partials, (share.line, column), total)
                else:
                    store(gradient, column, total)
            place += threads

    return write_line
