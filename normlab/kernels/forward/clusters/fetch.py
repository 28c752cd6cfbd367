"""Fetch a thread's part of rows and parameters into shared memory, and wait for it, in the cluster kernel.

Each thread reads only what it copied itself, so it waits for its own copies and needs no barrier. A wait is for all
groups of copies except the last few, so every turn must commit its groups in the same order: first the row's group
(committed in the turn before), then the parameters' group, then the next row's group. A group may be empty: the
parameters' is after the first turn, the next row's after the last row.
"""

from functools import cache
from typing import Any

from normlab.engine import cluster_rank, commit_copies, copy_async, cuda, load_bits_into, load_vector_into, wait_copies
from normlab.kernels.forward.clusters import edges
from normlab.kernels.forward.clusters.operands import Share
from normlab.kernels.forward.layouts import ClusterLayout


@cache
def sharer(layout: ClusterLayout) -> Any:
    """Return the device function `share_of(weight, stop) -> Share`, which says what this thread works on.

    In shared memory gamma lies after the block's part of the row, and beta after gamma.
    """
    cluster, readers, spread = layout.cluster, layout.readers, layout.spread
    columns, block_span, width = layout.thread_map.columns, layout.block_span, layout.thread_map.width
    held_columns = layout.held_columns
    # Where the row's part ends, counted in elements of a parameter. Without parameters in shared memory it is not used.
    after_row = held_columns * layout.itemsize // (layout.parameter_bytes or layout.itemsize)

    @cuda.jit(device=True)
    def share_of(weight, stop):
        rank = 0  # a constant if a row has one block: the compiler drops what depends on it
        if cluster > 1:
            rank = cluster_rank()
        offset = cuda.threadIdx.x * width
        # The first column of the slice, then of the block's part of the span, then of the thread.
        first = rank // spread * columns + rank % spread * block_span + offset
        gammas_at = after_row + offset
        betas_at = gammas_at
        if weight is not None:
            betas_at += held_columns
        # The readers of a row are neighbouring clusters.
        reader = cuda.blockIdx.x // cluster % readers
        stride = cuda.gridDim.x // (cluster * readers)
        return Share(rank, reader, cuda.threadIdx.x >> 5, offset, gammas_at, betas_at, first, stride, stop)

    return share_of


@cache
def writer_chooser(readers: int) -> Any:
    """Return the device function `writes(reader, v)`: True if this reader of the row writes the thread's vector v."""

    @cuda.jit(device=True)
    def writes(reader, v):
        # by vector, not by column: a vector's store stays one instruction
        return readers == 1 or v % readers == reader

    return writes


@cache
def row_fetcher(layout: ClusterLayout) -> Any:
    """Return the device function `fetch_row(memory, x, share, row)`.

    It starts to copy the thread's part of a row, as one group of copies; after the last row the group is empty.
    """
    has, place_of, fetch = edges.looker(layout), edges.placer(layout), edges.vector_fetcher(layout)

    @cuda.jit(device=True)
    def fetch_if(v, memory, x, share, place, row):
        if has(v, place, x.shape[1]):
            fetch(v, memory, x, share, place, row)

    fetch_all = edges.for_each_vector(layout, fetch_if)

    @cuda.jit(device=True)
    def fetch_row(memory, x, share, row):
        if row < x.shape[0]:
            fetch_all(0, memory, x, share, place_of(x, share, row), row)
        commit_copies()  # also an empty group: `wait_copies` counts groups, in every turn the same number

    return fetch_row


@cache
def row_taker(layout: ClusterLayout) -> Any:
    """Return the device function `take_row(values, memory, x, share, place, following)`: wait for the row's copies.

    If registers keep the row (`ClusterLayout.kept`), it loads the row into `values` and starts to fetch row
    `following` into the same shared memory.
    """
    width, block_span = layout.thread_map.width, layout.block_span
    parameters_held, kept = layout.parameters_held, layout.kept
    later = int(parameters_held)  # groups that may still be in flight: the parameters', committed last
    fetch_row, complete, has = row_fetcher(layout), edges.completer(layout), edges.looker(layout)

    @cuda.jit(device=True)
    def keep(v, values, memory, x, share, place):
        if has(v, place, x.shape[1]):
            load_bits_into(values, v * width, memory.held, share.offset + v * block_span, width, x)

    keep_all = edges.for_each_vector(layout, keep)

    @cuda.jit(device=True)
    def take_row(values, memory, x, share, place, following):
        if parameters_held:
            commit_copies()  # the parameters' group: their copies in the first turn, nothing later
        wait_copies(later)  # for this row. No barrier: each thread reads only its own copies
        complete(memory, x, share, place)
        if kept:  # to registers, once for all passes; the slots are then free for the next row
            keep_all(0, values, memory, x, share, place)
            fetch_row(memory, x, share, following)

    return take_row


@cache
def vector_taker(layout: ClusterLayout) -> Any:
    """Return the device function `take(values, memory, share, v, x)`: load vector v from shared memory into `values`.

    It does nothing if registers keep the row, because `take_row` has loaded all vectors.
    """
    width, block_span, kept = layout.thread_map.width, layout.block_span, layout.kept

    @cuda.jit(device=True)
    def take(values, memory, share, v, x):
        if not kept:
            load_bits_into(values, 0, memory.held, share.offset + v * block_span, width, x)

    return take


@cache
def parameter_fetcher(layout: ClusterLayout) -> Any:
    """Return the device function `fetch_parameters(memory, weight, bias, share, place, n2)`.

    It starts to copy the thread's part of gamma and beta, of the vectors that this reader of the row writes. It does
    nothing where the parameters stay in global memory.
    """
    vectors, width, span, _ = layout.thread_map.loop
    block_span, parameters_held, anywhere = layout.block_span, layout.parameters_held, layout.alignments > 0
    writes, has, stage = writer_chooser(layout.readers), edges.looker(layout), edges.parameter_stager(layout)

    @cuda.jit(device=True)
    def fetch(memory, at, array, column):
        if array is not None:
            copy_async(memory.parameters, at, array, column, width)

    @cuda.jit(device=True)
    def fetch_parameters(memory, weight, bias, share, place, n2):
        if parameters_held:  # `layouts.spread_out` decides it
            for v in range(vectors):
                if anywhere:
                    if writes(share.reader, v):
                        stage(memory, weight, bias, share, place, v)
                elif writes(share.reader, v) and has(v, place, n2):
                    fetch(memory, share.gammas_at + v * block_span, weight, place.first + v * span)
                    fetch(memory, share.betas_at + v * block_span, bias, place.first + v * span)

    return fetch_parameters


@cache
def parameter_loader(layout: ClusterLayout) -> Any:
    """Return the device function `load_parameters(gammas, betas, memory, weight, bias, share, v)`.

    It loads the thread's vector v of gamma and beta: from shared memory if that holds them, else from global memory.
    """
    width, span, block_span, parameters_held = (
        layout.thread_map.width,
        layout.thread_map.span,
        layout.block_span,
        layout.parameters_held,
    )

    @cuda.jit(device=True)
    def load_parameter(target, memory, at, array, column):
        if array is not None:
            if parameters_held:
                load_bits_into(target, 0, memory.parameters, at, width, array)
            else:
                load_vector_into(target, 0, array, column, width)

    @cuda.jit(device=True)
    def load_parameters(gammas, betas, memory, weight, bias, share, v):
        load_parameter(gammas, memory, share.gammas_at + v * block_span, weight, share.first + v * span)
        load_parameter(betas, memory, share.betas_at + v * block_span, bias, share.first + v * span)

    return load_parameters
