"""Fetch a thread's part of rows and parameters into shared memory, and wait for it, in the cluster kernel.

Each thread reads only what it copied itself, so it waits for its own copies and needs no barrier. The waits count
groups of copies: the first row's, then in each turn the parameters' (empty after the first turn) and the next row's.
"""

from functools import cache
from typing import Any

from normlab.engine import cluster_rank, commit_copies, copy_async, cuda, load_bits_into, load_vector_into, wait_copies
from normlab.kernels.forward.clusters.operands import Share
from normlab.kernels.forward.layouts import Slices


@cache
def sharer(slices: Slices) -> Any:
    """Return the device function `share_of(weight) -> Share`, which says what this thread works on.

    In shared memory gamma lies after the row, and beta after gamma.
    """
    cluster, readers, spread = slices.cluster, slices.readers, slices.spread
    columns, stretch, width = slices.thread_map.columns, slices.stretch, slices.thread_map.width
    held_columns = slices.held_columns
    after_row = held_columns * slices.itemsize // (slices.parameter_bytes or slices.itemsize)

    @cuda.jit(device=True)
    def share_of(weight):
        # Of one block per row the rank is a constant, and the compiler drops what depends on it.
        rank = 0
        if cluster > 1:
            rank = cluster_rank()
        offset = cuda.threadIdx.x * width
        # Its column: the slice's first column, then the block's stretch of the slice, then the thread's.
        first = rank // spread * columns + rank % spread * stretch + offset
        gammas_at = after_row + offset  # in elements of a parameter
        betas_at = gammas_at
        if weight is not None:
            betas_at += held_columns
        reader = cuda.blockIdx.x // cluster % readers
        stride = cuda.gridDim.x // (cluster * readers)
        return Share(rank, reader, cuda.threadIdx.x >> 5, offset, gammas_at, betas_at, first, stride)

    return share_of


@cache
def writer_chooser(readers: int) -> Any:
    """Return the device function `writes(reader, v)`: whether this reader of the row writes the thread's vector v."""

    @cuda.jit(device=True)
    def writes(reader, v):
        # by vector, not by column: a vector's store stays one instruction
        return readers == 1 or v % readers == reader

    return writes


@cache
def row_fetcher(slices: Slices) -> Any:
    """Return the device function `fetch_row(memory, x, share, row)`.

    It starts to copy the thread's part of a row, as one group of copies; after the last row the group is empty.
    """
    vectors, width, span, whole = _shape(slices)
    stretch = slices.stretch

    @cuda.jit(device=True)
    def fetch_row(memory, x, share, row):
        if row < x.shape[0]:
            for v in range(vectors):
                if whole or share.first + v * span < x.shape[1]:  # no condition where the slices have all vectors
                    copy_async(memory.held, share.offset + v * stretch, x, (row, share.first + v * span), width)
        commit_copies()  # also an empty group: `wait_copies` counts groups, in every turn the same number

    return fetch_row


@cache
def row_taker(slices: Slices) -> Any:
    """Return the device function `take_row(values, memory, x, share, following)`, which waits for a row.

    If registers keep the row (`Slices.kept`), it moves it there and starts to fetch the next one.
    """
    vectors, width, span, whole = _shape(slices)
    stretch, beside, kept = slices.stretch, slices.beside, slices.kept
    later = int(beside)  # groups that may still be in flight: the parameters', committed last
    fetch_row = row_fetcher(slices)

    @cuda.jit(device=True)
    def take_row(values, memory, x, share, following):
        if beside:
            commit_copies()  # the parameters' group in the first turn, an empty one later
        wait_copies(later)  # no barrier: each thread reads only its own copies
        if kept:  # to registers, once for all passes; the slots are then free for the next row
            for v in range(vectors):
                if whole or share.first + v * span < x.shape[1]:
                    load_bits_into(values, v * width, memory.held, share.offset + v * stretch, width, x)
            fetch_row(memory, x, share, following)

    return take_row


@cache
def vector_taker(slices: Slices) -> Any:
    """Return the device function `take(values, memory, share, v, x)`: load vector v, unless registers keep the row."""
    width, stretch, kept = slices.thread_map.width, slices.stretch, slices.kept

    @cuda.jit(device=True)
    def take(values, memory, share, v, x):
        if not kept:
            load_bits_into(values, 0, memory.held, share.offset + v * stretch, width, x)

    return take


@cache
def parameter_fetcher(slices: Slices) -> Any:
    """Return the device function `fetch_parameters(memory, weight, bias, share, n2)`.

    It starts to copy the thread's part of gamma and beta, of the vectors that this reader of the row writes. It does
    nothing where the parameters stay in global memory.
    """
    vectors, width, span, whole = _shape(slices)
    stretch, beside = slices.stretch, slices.beside
    writes = writer_chooser(slices.readers)

    @cuda.jit(device=True)
    def fetch(memory, at, array, column):
        if array is not None:
            copy_async(memory.parameters, at, array, column, width)

    @cuda.jit(device=True)
    def fetch_parameters(memory, weight, bias, share, n2):
        if beside:  # decided when the kernel is built; see `layouts.spread_out`
            for v in range(vectors):
                if writes(share.reader, v) and (whole or share.first + v * span < n2):
                    fetch(memory, share.gammas_at + v * stretch, weight, share.first + v * span)
                    fetch(memory, share.betas_at + v * stretch, bias, share.first + v * span)

    return fetch_parameters


@cache
def parameter_loader(slices: Slices) -> Any:
    """Return the device function `load_parameters(gammas, betas, memory, weight, bias, share, v)`: vector v of each.

    They come from shared memory or, where they are not there, from global memory.
    """
    width, span, stretch, beside = slices.thread_map.width, slices.thread_map.span, slices.stretch, slices.beside

    @cuda.jit(device=True)
    def load_parameter(target, memory, at, array, column):
        if array is not None:
            if beside:
                load_bits_into(target, 0, memory.parameters, at, width, array)
            else:
                load_vector_into(target, 0, array, column, width)

    @cuda.jit(device=True)
    def load_parameters(gammas, betas, memory, weight, bias, share, v):
        load_parameter(gammas, memory, share.gammas_at + v * stretch, weight, share.first + v * span)
        load_parameter(betas, memory, share.betas_at + v * stretch, bias, share.first + v * span)

    return load_parameters


def _shape(slices: Slices) -> tuple[int, int, int, bool]:
    """Return a thread's vectors, their width and span, and whether the slices have all of them."""
    thread_map = slices.thread_map
    return thread_map.vectors, thread_map.width, thread_map.span, thread_map.whole
