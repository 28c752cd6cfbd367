"""Fetch a thread's part of rows and parameters into shared memory, and wait for it, in the cluster kernel.

A thread reads only the elements of a row that it copied itself, so it waits for its own copies and needs no barrier. A
wait names how many of the latest groups of copies may still be in flight. So every turn must commit the same groups in
the same order:

    this row          committed in the turn before
    the parameters    copies in the first turn, empty in all later ones
    the next row      empty after the last row
"""

from functools import cache
from typing import Any

from normlab.engine import (
    cluster_rank,
    commit_copies,
    cuda,
    load_bits_into,
    load_vector_into,
    wait_copies,
    widen_into,
)
from normlab.kernels.forward.clusters import edges
from normlab.kernels.forward.clusters.operands import Share
from normlab.kernels.forward.layouts import ClusterLayout


@cache
def sharer(layout: ClusterLayout) -> Any:
    """Return the device function `share_of(weight) -> Share`, which says what this thread works on.

    In shared memory gamma lies after the block's part of the row, and beta after gamma.
    """
    cluster, readers, spread = layout.cluster, layout.readers, layout.spread
    columns, block_span, width = layout.thread_map.columns, layout.block_span, layout.thread_map.width
    held_columns, parameter_columns = layout.held_columns, layout.parameter_columns
    # Where the row's part ends, counted in elements of a parameter. Without parameters in shared memory it is not used.
    after_row = held_columns * layout.itemsize // (layout.parameter_bytes or layout.itemsize)
    after_row += width if layout.cut else 0  # the vector before the first thread's

    @cuda.jit(device=True)
    def share_of(weight):
        rank = 0  # a constant if a row has one block: the compiler drops what depends on it
        if cluster > 1:
            rank = cluster_rank()
        offset = cuda.threadIdx.x * width
        # The first column of the slice, then of the block's part of the span, then of the thread.
        first = rank // spread * columns + rank % spread * block_span + offset
        gammas_at = after_row + offset
        betas_at = gammas_at
        if weight is not None:
            betas_at += parameter_columns
        # The readers of a row are neighbouring clusters.
        reader = cuda.blockIdx.x // cluster % readers
        stride = cuda.gridDim.x // (cluster * readers)
        return Share(rank, reader, cuda.threadIdx.x >> 5, offset, gammas_at, betas_at, first, stride)

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
    place_of = edges.placer(layout)

    def vector(inner: bool) -> Any:
        has, fetch = edges.has_vector(layout, inner), edges.vector_fetcher(layout, inner)

        @cuda.jit(device=True)
        def fetch_if(v, place, memory, x, share, row):
            if has(v, place, x.shape[1]):
                fetch(v, memory, x, share, place, row)

        return fetch_if

    fetch_all = edges.for_each_vector(layout, vector)

    @cuda.jit(device=True)
    def fetch_row(memory, x, share, row):
        if row < x.shape[0]:
            fetch_all(place_of(x, share, row), memory, x, share, row)
        commit_copies()  # also an empty group: `wait_copies` counts groups, in every turn the same number

    return fetch_row


@cache
def row_taker(layout: ClusterLayout) -> Any:
    """Return the device function `take_row(memory, x, share, place, following)`: wait for the row's copies.

    If registers keep the row (`ClusterLayout.kept`), it loads the row into `memory.kept` and starts to fetch row
    `following` into the same shared memory.
    """
    block_span, size, count = layout.block_span, layout.itemsize, layout.thread_map.width * layout.itemsize // 4
    parameters_held, kept = layout.parameters_held, layout.kept
    later = int(parameters_held)  # groups that may still be in flight: the parameters', committed last
    fetch_row, complete = row_fetcher(layout), edges.completer(layout)

    def vector(inner: bool) -> Any:
        has = edges.has_vector(layout, inner)

        @cuda.jit(device=True)
        def keep(v, place, memory, x, share):
            if has(v, place, x.shape[1]):
                at = (share.offset + v * block_span) * size // 4
                # As words, unconverted: two elements of 16 bits share a register until a pass widens them.
                load_vector_into(memory.kept, v * count, memory.words, at, count)

        return keep

    keep_all = edges.for_each_vector(layout, vector)

    @cuda.jit(device=True)
    def take_row(memory, x, share, place, following):
        if parameters_held:
            commit_copies()  # the parameters' group: their copies in the first turn, nothing later
        wait_copies(later)  # for this row. No barrier: each thread reads only its own copies
        complete(memory, x, share, place)
        if kept:  # to registers, once for all passes; the slots are then free for the next row
            keep_all(place, memory, x, share)
            fetch_row(memory, x, share, following)

    return take_row


@cache
def vector_taker(layout: ClusterLayout) -> Any:
    """Return the device function `take(values, memory, share, v, x)`: write vector v of the row to `values`."""
    width, block_span, kept = layout.thread_map.width, layout.block_span, layout.kept
    count = width * layout.itemsize // 4

    @cuda.jit(device=True)
    def take(values, memory, share, v, x):
        if kept:
            widen_into(values, 0, memory.kept, v * count, width, x)
        else:
            load_bits_into(values, 0, memory.held, share.offset + v * block_span, width, x)

    return take


@cache
def parameter_fetcher(layout: ClusterLayout) -> Any:
    """Return the device function `fetch_parameters(memory, weight, bias, share, place, n2)`.

    It starts to copy the thread's part of gamma and beta, of the vectors that this reader of the row writes. It does
    nothing where the parameters stay in global memory. Where threads cut them out of two vectors, they need the vector
    before a span's, too. place: of a row.
    """
    vectors, width, span, whole = layout.thread_map.loop
    stride, parameters_held, cut, alike = layout.parameter_stride, layout.parameters_held, layout.cut, layout.alike
    writes, copy, stage = writer_chooser(layout.readers), edges.parameter_copier(layout), edges.parameter_stager(layout)

    @cuda.jit(device=True)
    def fetch(memory, weight, bias, share, at, column):
        copy(memory, share.gammas_at + at, weight, column)
        copy(memory, share.betas_at + at, bias, column)

    @cuda.jit(device=True)
    def fetch_parameters(memory, weight, bias, share, place, n2):
        if parameters_held:  # `layouts.spread_out` decides it
            for v in range(vectors):
                if alike:
                    # All rows of this cluster begin as this one does, so its shift fits them all.
                    stage(memory, share.gammas_at + v * stride, weight, place.first + v * span)
                    stage(memory, share.betas_at + v * stride, bias, place.first + v * span)
                elif writes(share.reader, v):
                    if cut or whole or share.first + v * span < n2:
                        fetch(memory, weight, bias, share, v * stride, share.first + v * span)
                    # The cut of the first thread reaches back into the vector before its own.
                    if cut and cuda.threadIdx.x == 0:
                        fetch(memory, weight, bias, share, v * stride - width, share.first + v * span - width)

    return fetch_parameters


@cache
def parameter_loader(layout: ClusterLayout) -> Any:
    """Return the device function `load_parameters(gammas, betas, memory, weight, bias, share, place, v)`.

    It loads the thread's vector v of gamma and beta: from shared memory if that holds them, else from global memory.
    """
    _, width, span, _ = layout.thread_map.loop
    parameters_held, take = layout.parameters_held, edges.parameter_taker(layout)

    @cuda.jit(device=True)
    def load_parameter(target, memory, number, v, array, share, place):
        if array is not None:
            if parameters_held:
                take(target, memory, share, number, v, array, place)
            else:
                load_vector_into(target, 0, array, share.first + v * span, width)

    @cuda.jit(device=True)
    def load_parameters(gammas, betas, memory, weight, bias, share, place, v):
        load_parameter(gammas, memory, 0, v, weight, share, place)
        # Shared memory has no place for an absent weight, so beta then comes first.
        load_parameter(betas, memory, 0 if weight is None else 1, v, bias, share, place)

    return load_parameters
