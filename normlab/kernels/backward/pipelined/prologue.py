"""Begin the pipelined backward: which columns of which rows a thread has, and the first copies."""

from functools import cache
from typing import Any

from normlab.engine import cast, cluster_rank, commit_copies, cuda, int32, load, uint32
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.operands import Row, Share
from normlab.kernels.backward.pipelined.passes import fetcher

RESTART = 2  # turns that a cluster could do while it stores one alignment's sums and fetches the next one's first rows


@cache
def sharer(layout: PipelineLayout, sampled: bool) -> tuple[Any, Any]:
    """Return the device functions that say what this thread works on.

        alignments_of(shape) -> (first, last)               see `alignments_finder`
        share_of(shape, samples, alignment) -> Share

    shape: (n1, n2). sampled: rows are those of the cluster's sample (`samples`).
    """
    rows, blocks, columns, width = layout.rows, layout.blocks, layout.thread_map.columns, layout.thread_map.width
    alignments, prefetch, (alignments_of, run_of) = layout.alignments, layout.prefetch, alignments_finder(layout)

    @cuda.jit(device=True)
    def share_of(shape, samples, alignment):
        # The block is (threads, row groups): a thread finds its row group without a division.
        n1, n2 = shape
        thread = cuda.threadIdx.x
        group = 0
        # Elsewhere the group is 0 anyway. The constant saves three registers: LayerNorm from the output spilled.
        if rows > 1 or alignments == 1 or prefetch:
            group = cuda.threadIdx.y
        start = 0  # the first column of this block's slice
        cluster = cuda.blockIdx.x
        clusters = cuda.gridDim.x
        if blocks > 1:
            start = cluster_rank() * columns
            cluster //= blocks
            clusters //= blocks
        offset = thread * width
        turn = cluster
        if sampled:
            turn //= samples
            clusters //= samples
        top = turn * rows
        stride = clusters * rows
        end = n1
        if alignments > 1:
            top, stride, end, cluster = run_of(n1, cluster, clusters, alignment)
            start -= alignment * n2 % width  # its rows begin so many elements after the beginning of a vector
        return Share(thread, thread >> 5, group, offset, start + offset, cluster, top, stride, end)

    return alignments_of, share_of


@cache
def alignments_finder(layout: PipelineLayout) -> tuple[Any, Any]:
    """Return the device functions that divide the rows of all alignments among the clusters.

        alignments_of(shape) -> (first, last)               the alignments that this cluster takes, one after another
        run_of(n1, cluster, clusters, alignment) -> (top, stride, end, line)        `Share`'s members

    An alignment is where in a vector a row begins. If the number of clusters is a multiple of the number of alignments,
    each cluster takes one alignment. Otherwise all turns stand in a line, those of alignment 0 first, then those of
    alignment 1, …, and each cluster takes an equal part of the line. A cluster whose part reaches over a border between
    two alignments leaves a line of partial sums for each of them:

        alignment     0 0 0 0 0 1 1 1 1 1 2 2 2 2 2 3 3 3 3 3
        cluster       0 0 0 0 0 0 0 1 1 1 1 1 1 1 2 2 2 2 2 2
        line of sums  0 0 0 0 0 1 1 2 2 2 3 3 3 3 4 5 5 5 5 5
    """
    rows, blocks, alignments, once = layout.rows, layout.blocks, layout.alignments, layout.once
    together = rows * alignments  # rows from one turn of an alignment to its next

    @cuda.jit(device=True)
    def one(shape):
        return 0, 0

    @cuda.jit(device=True)
    def turns_of(n1):
        """Return how many turns an alignment counts as, in 32 bits: divisions of 64 bits take 600 instructions."""
        return uint32((n1 + together - 1) // together + RESTART)

    @cuda.jit(device=True)
    def begin_of(cluster, clusters, turns):
        """Return where in the line of all turns the cluster's part begins. turns: of each alignment."""
        every = uint32(turns * alignments)
        each = uint32(every // uint32(clusters))
        return uint32(cluster * each + min(cluster, every - each * clusters))

    @cuda.jit(device=True)
    def alignments_of(shape):
        n1, _ = shape
        cluster = cuda.blockIdx.x // blocks
        clusters = cuda.gridDim.x // blocks
        if once or n1 < alignments or clusters % alignments == 0:
            return cluster % alignments, cluster % alignments
        turns = turns_of(n1)
        first = int32(begin_of(cluster, clusters, turns) // turns)
        # Up to the alignment in which the next cluster begins. If this cluster has no turn of it, its sums are zeros,
        # but no line of partial sums stays unwritten.
        last = min(int32(begin_of(cluster + 1, clusters, turns) // turns), alignments - 1)
        return first, last

    @cuda.jit(device=True)
    def run_of(n1, cluster, clusters, alignment):
        if once or n1 < alignments or clusters % alignments == 0:
            top = cluster // alignments * together + alignment
            return top, (clusters + alignments - 1) // alignments * together, n1, cluster
        turns = turns_of(n1)
        begin = max(int32(begin_of(cluster, clusters, turns)) - alignment * int32(turns), 0)
        end = min(int32(begin_of(cluster + 1, clusters, turns)) - alignment * int32(turns), int32(turns))
        return begin * together + alignment, together, min(end * together + alignment, n1), cluster + alignment

    return alignments_of if alignments > 1 else one, run_of


@cache
def statistics_loader(kind: Kind) -> Any:
    """Return the device function `load_statistics(operands, row) -> (mean, invvar)`: zeros if row >= n1.

    The mean is 0, too, if the kernel needs none.
    """
    centered = kind.centered

    @cuda.jit(device=True)
    def load_statistics(operands, row):
        center = cast(0, operands.invvar)
        scale = cast(0, operands.invvar)
        if row < operands.grad_input.shape[0]:  # row groups of the last turn may have no row
            scale = load(operands.invvar, row)
            if centered:
                center = load(operands.mean, row)
        return center, scale

    return load_statistics


@cache
def beginner(layout: PipelineLayout, kind: Kind) -> Any:
    """Return the device function `fetch_first_rows(operands, memory, share) -> Row`.

    It starts to copy the row group's first rows into the pipeline stages, each row as a group of copies, and returns
    the first row.
    """
    rows, columns, prefetched, alignments = layout.rows, layout.thread_map.columns, layout.prefetched, layout.alignments
    fetch, load_statistics = fetcher(layout, kind), statistics_loader(kind)

    @cuda.jit(device=True)
    def fetch_first_rows(operands, memory, share):
        row = share.top + share.group * alignments
        for stage in range(prefetched):
            at = (stage * rows + share.group) * columns + share.offset
            fetch(operands, memory, row + stage * share.stride, at, share)
            commit_copies()  # after the last row an empty group: the waits count groups
        # after the copies, which take longer: these loads wait beside them
        center, scale = load_statistics(operands, row)
        return Row(row, share.group * columns + share.offset, center, scale)

    return fetch_first_rows
