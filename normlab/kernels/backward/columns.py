"""The columns' sums at the end of the pipelined backward: a block's teams add up theirs, and few blocks theirs.

    finish    the teams' sums, one after another. Those of a single cluster are the gradient; of several, each has its
              row of partial sums; gathered, each block leaves them in its shared memory
    gather    gathered: each block adds up some columns of all blocks, read from their shared memory

The ring has been used when the sums are made, and they lie where it was: first those of all teams but one, then, where
they are gathered, the block's for either gradient.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda, load_from_block, store, store_vector_from
from normlab.kernels.backward.kind import Kind
from normlab.kernels.backward.parameters import readers
from normlab.kernels.backward.ring import Layout

GATHERED = 8  # blocks: as many as a cluster may have on every GPU that knows clusters


def gathered_at(layout: Layout, number: int) -> int:
    """Where a block's sums for gradient `number` (0 or 1) lie, in accumulators."""
    return (layout.rows - 1 + number) * layout.deal.columns


@cache
def finisher(layout: Layout, kind: Kind, dtype: Any, divide: bool, gathered: bool, number: int) -> Any:
    """The device function `finish(…)` for gradient `number`. divide: by gamma, clamped."""
    deal, rows = layout.deal, layout.rows
    elements, columns, span, width, vectors, whole = (
        deal.elements, deal.columns, deal.span, deal.width, deal.vectors, deal.whole,
    )  # fmt: skip
    threads = deal.threads
    _, load_clamped, _, _ = readers(layout, kind)
    leave_sums = leaver(gathered_at(layout, number), width) if gathered else writer(width, kind.together)

    @cuda.jit(device=True)
    def finish(sums, mine, parameters, weight, eps, gradient, parts, cluster, team, thread, place, first):
        totals = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        if rows > 1 or gathered:
            cuda.syncthreads()  # what lies there has been read: the ring, or the sums for the other gradient
        if rows > 1:
            if team > 0:
                for k in range(elements):
                    sums[(team - 1) * columns + k * threads + thread] = mine[k]
            cuda.syncthreads()  # all teams' sums are in shared memory before the first team adds them up
        if team == 0:
            # A small loop, however many teams there are. Inside of the loop over vectors it was too much to be unrolled
            # with that: mine[v * width + k] lay in local memory from the first row on (192 bytes of a thread at 384
            # bfloat16), or all its loads came first (255 registers at 768, which takes 142).
            for other in range(rows - 1):
                for k in range(elements):
                    mine[k] += sums[other * columns + k * threads + thread]
            for v in range(vectors):
                column = first + v * span
                if whole or column < gradient.shape[0]:
                    if divide:
                        load_clamped(gammas, parameters, v, place, weight, eps)
                    for k in range(width):
                        totals[k] = mine[v * width + k] / gammas[k] if divide else mine[v * width + k]
                    leave_sums(totals, sums, gradient, parts, cluster, column)

    return finish


@cache
def leaver(start: int, width: int) -> Any:
    """The device function `leave_sums(…)`: a vector of a block's sums, for all blocks of the cluster to read."""

    @cuda.jit(device=True)
    def leave_sums(totals, sums, gradient, parts, cluster, column):
        store_vector_from(sums, start + column, totals, 0, width)

    return leave_sums


@cache
def writer(width: int, together: int) -> Any:
    """The device function `write_sums(…)`: a vector of a cluster's sums into its row of `parts`, or as the gradient."""

    @cuda.jit(device=True)
    def write_sums(totals, sums, gradient, parts, cluster, column):
        if parts.shape[0] > 1:
            store_vector_from(parts, (cluster, column), totals, 0, width)
        else:
            for k in range(0, width, together):
                store_vector_from(gradient, column + k, totals, k, together)

    return write_sums


@cache
def gatherer(layout: Layout, dtype: Any, number: int) -> Any:
    """The device function `gather(sums, gradient)`: this block's columns of a gradient, of all blocks' sums in turn."""
    threads, start = layout.threads, gathered_at(layout, number)

    @cuda.jit(device=True)
    def gather(sums, gradient):
        values = cuda.local.array(GATHERED, dtype)
        column = cuda.blockIdx.x * threads + cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        while column < gradient.shape[0]:
            for rank in range(GATHERED):  # all on their way before the first is added
                values[rank] = load_from_block(sums, start + column, rank)
            total = values[0]
            for rank in range(1, GATHERED):
                total += values[rank]
            store(gradient, column, total)
            column += GATHERED * threads

    return gather
