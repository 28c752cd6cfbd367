"""Add up the columns' sums at the end of the pipelined backward.

Each block adds up its row groups' partial sums (`finish`). There are three ways on from there:

- A launch of one cluster, whose blocks have different columns: the sums are the gradients.
- A launch of several clusters: each writes a row of partial sums, and a second kernel adds up these rows.
- A launch of one cluster of eight blocks that have different rows and all columns (`gathered`): the blocks add up their
  sums through distributed shared memory (`gather`), and each block does it for some of the columns.

The sums lie in the memory of the pipeline stages, which are no longer used: first the sums of all row groups except
the first, then, for `gather`, the block's sums for either gradient.
"""

from functools import cache
from typing import Any

from normlab.engine import (
    cluster_arrive_shared,
    cluster_wait,
    cuda,
    launch_dependents,
    load,
    load_from_block,
    store,
    store_vector_from,
    wait_copies,
)
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.parameters import readers
from normlab.kernels.backward.pipelined.prologue import roles

MANY_GROUPS = 8  # row groups per block from which all threads add up: the first group's few would add for 3 us
GATHERED = 8  # blocks: a cluster may have as many on every GPU that has clusters


def gathered_at(layout: PipelineLayout, number: int) -> int:
    """Return the offset of a block's sums for gradient `number` (0 or 1) in shared memory, in accumulators."""
    return (layout.rows - 1 + number) * layout.thread_map.columns


@cache
def epilogue(layout: PipelineLayout, kind: Kind, dtype: Any, gathered: bool, apart: bool) -> Any:
    """Return the device function `add_up_columns(operands, memory, share, sums, gradients)`.

    gathered, apart: as in `kernel.build`.
    """
    weighted, biased, memory_efficient = kind.weighted, kind.biased, kind.memory_efficient
    # With a prefetch of 0, blocks may still read the last row's sums from this block's shared memory, so a barrier must
    # follow before this block ends. With a prefetch of 1 the last turn has no row: its barrier came after that reading.
    reads_last_sums = layout.blocks > 1 and layout.prefetch == 0
    finish_weight = finisher(layout, kind, dtype, memory_efficient, gathered, 0)
    finish_bias = finisher(layout, kind, dtype, False, gathered, 1)
    gather = gatherer(layout, kind, dtype)
    _, for_columns = roles(layout.blocks, apart)

    @cuda.jit(device=True)
    def add_up_columns(operands, memory, share, sums, gradients):
        if reads_last_sums:
            cluster_arrive_shared()  # this block has read the last row's sums from the other blocks
        launch_dependents()  # the final sums' blocks may start on multiprocessors that this kernel leaves
        wait_copies(0)  # no copy may still write to this memory
        shared = cuda.shared.array(0, dtype, alignment=16)
        # One gradient after the other, in the same memory: both at once would need twice as much.
        if weighted and for_columns():
            finish_weight(shared, sums.weight, operands, memory, share, gradients.grad_weight, gradients.part_weight)
        if biased and for_columns():
            finish_bias(shared, sums.bias, operands, memory, share, gradients.grad_bias, gradients.part_bias)
        if gathered:
            gather(shared, gradients)
        if reads_last_sums:
            cluster_wait()  # the exchange buffer must live until the other blocks have read their last sums

    return add_up_columns


@cache
def finisher(layout: PipelineLayout, kind: Kind, dtype: Any, divide: bool, gathered: bool, number: int) -> Any:
    """Return the device function `finish(shared, mine, operands, memory, share, gradient, partials)`.

    It adds up the block's sums for gradient `number`: 0 is grad_weight, 1 is grad_bias. shared: the memory for sums.
    mine: the thread's sums. gradient, partials: where the result goes, see `writer`.

    divide: divide the sums by the clamped gamma, as the first pass has not. gathered: leave the sums for `gather`.
    """
    thread_map, rows = layout.thread_map, layout.rows
    threads, vectors, width, whole = thread_map
    elements, columns, span = thread_map.elements, thread_map.columns, thread_map.span
    _, load_clamped, _, _ = readers(layout, kind)
    by_all, add_up = rows >= MANY_GROUPS and not gathered, groups_adder(layout)
    first = 0 if by_all else 1  # the first row group that leaves its sums
    leave_sums = leaver(gathered_at(layout, number), width) if gathered else writer(layout, kind)

    @cuda.jit(device=True)
    def finish(shared, mine, operands, memory, share, gradient, partials):
        totals = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        if rows > 1 or gathered:
            cuda.syncthreads()  # all threads have read this memory: pipeline stages, or the other gradient's sums
        if rows > 1:
            if share.group >= first:
                for k in range(elements):  # neighbouring threads write neighbouring elements: no bank conflicts
                    shared[(share.group - first) * columns + k * threads + share.thread] = mine[k]
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
                    mine[k] += shared[other * columns + k * threads + share.thread]
            # Round once and store, vector by vector.
            for v in range(vectors):
                column = share.first + v * span
                if whole or column < gradient.shape[0]:
                    if divide:
                        load_clamped(gammas, memory.parameters, v, share.offset, operands.weight, operands.eps)
                    for k in range(width):
                        totals[k] = mine[v * width + k] / gammas[k] if divide else mine[v * width + k]
                    leave_sums(totals, shared, gradient, partials, share.cluster, column)

    return finish


@cache
def groups_adder(layout: PipelineLayout) -> Any:
    """Return the device function `add_up(shared)`: add all row groups' sums to the first one's, with all threads."""
    columns, rows, threads = layout.thread_map.columns, layout.rows, layout.threads

    @cuda.jit(device=True)
    def add_up(shared):
        place = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        while place < columns:
            total = load(shared, place)
            for group in range(1, rows):
                total += load(shared, group * columns + place)
            store(shared, place, total)
            place += threads

    return add_up


@cache
def leaver(start: int, width: int) -> Any:
    """Return the device function `leave_sums(totals, shared, gradient, partials, cluster, column)`.

    It stores a vector of the block's sums in shared memory, from offset `start` on, where other blocks read them.
    """

    @cuda.jit(device=True)
    def leave_sums(totals, shared, gradient, partials, cluster, column):
        store_vector_from(shared, start + column, totals, 0, width)

    return leave_sums


@cache
def writer(layout: PipelineLayout, kind: Kind) -> Any:
    """Return the device function `write_sums(totals, shared, gradient, partials, cluster, column)`.

    It stores a vector of a cluster's sums in the cluster's row of `partials`, or in `gradient` if there is one cluster.
    """
    width, together, anywhere = layout.thread_map.width, kind.together, layout.alignments > 1

    @cuda.jit(device=True)
    def write_sums(totals, shared, gradient, partials, cluster, column):
        several = partials.shape[0] > 1
        if anywhere:  # once per kernel: element by element
            for k in range(width):
                if 0 <= column + k < gradient.shape[0]:
                    if several:
                        store(partials, (cluster, column + k), totals[k])
                    else:
                        store(gradient, column + k, totals[k])
        elif several:
            store_vector_from(partials, (cluster, column), totals, 0, width)
        else:  # the gradient may allow narrower stores than the rows: `together` elements
            for k in range(0, width, together):
                store_vector_from(gradient, column + k, totals, k, together)

    return write_sums


@cache
def gatherer(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `gather(shared, gradients)`, with which the blocks of a cluster add up their sums."""
    weighted, biased = kind.weighted, kind.biased
    gather_weight, gather_bias = (column_gatherer(layout, dtype, number) for number in (0, 1))

    @cuda.jit(device=True)
    def gather(shared, gradients):
        cluster_arrive_shared()
        cluster_wait()  # all blocks' sums are in shared memory before a block reads them
        if weighted:
            gather_weight(shared, gradients.grad_weight)
        if biased:
            gather_bias(shared, gradients.grad_bias)
        cluster_arrive_shared()
        cluster_wait()  # a block's shared memory must live until the other blocks have read its sums

    return gather


@cache
def column_gatherer(layout: PipelineLayout, dtype: Any, number: int) -> Any:
    """Return the device function `gather(shared, gradient)`: add up some columns over all blocks, and store the sums.

    The eight blocks divide the columns among them: a block takes `threads` neighbouring columns of every 8 * threads.
    """
    threads, start = layout.threads, gathered_at(layout, number)

    @cuda.jit(device=True)
    def gather(shared, gradient):
        values = cuda.local.array(GATHERED, dtype)
        column = cuda.blockIdx.x * threads + cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        while column < gradient.shape[0]:
            for rank in range(GATHERED):  # all eight loads are in flight before the first addition waits
                values[rank] = load_from_block(shared, start + column, rank)
            # blocks are added in the order of their rank: the same bits whichever block adds
            total = values[0]
            for rank in range(1, GATHERED):
                total += values[rank]
            store(gradient, column, total)
            column += GATHERED * threads

    return gather
