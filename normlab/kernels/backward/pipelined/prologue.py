"""Begin the pipelined backward: which columns of which rows a thread has, and the first copies."""

from functools import cache
from typing import Any

from normlab.engine import cast, cluster_rank, commit_copies, cuda, load
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.operands import Row, Share
from normlab.kernels.backward.pipelined.passes import fetcher


@cache
def sharer(layout: PipelineLayout, sampled: bool) -> Any:
    """Return the device function `share_of(n2, samples) -> Share`: what this thread works on.

    sampled: rows are those of the cluster's sample (`samples`).
    """
    rows, blocks, columns, width = layout.rows, layout.blocks, layout.thread_map.columns, layout.thread_map.width
    alignments = layout.alignments

    @cuda.jit(device=True)
    def share_of(n2, samples):
        # The block is (threads, row groups): a thread finds its row group without a division.
        thread = cuda.threadIdx.x
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
        if alignments > 1:  # clusters take the alignments in turn, and each takes every `alignments`-th row
            alignment = cluster % alignments
            top = cluster // alignments * rows * alignments + alignment
            stride = (clusters + alignments - 1) // alignments * rows * alignments
            start -= alignment * n2 % width  # its rows begin so many elements after the beginning of a vector
        return Share(thread, thread >> 5, cuda.threadIdx.y, offset, start + offset, cluster, top, stride)

    return share_of


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
            fetch(operands, memory, row + stage * share.stride, at, share.first)
            commit_copies()  # after the last row an empty group: the waits count groups
        # after the copies, which take longer: these loads wait beside them
        center, scale = load_statistics(operands, row)
        return Row(row, share.group * columns + share.offset, center, scale)

    return fetch_first_rows
