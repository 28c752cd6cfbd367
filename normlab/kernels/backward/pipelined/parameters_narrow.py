"""Keep the parameters in shared memory in their own 16 bits; `parameters` says why."""

from functools import cache
from typing import Any

from normlab.engine import (
    cast,
    commit_copies,
    copy_async,
    cuda,
    int32,
    load,
    load_bits,
    load_bits_into,
    reciprocal,
    reciprocal_of_normal,
    store,
    wait_copies,
)
from normlab.kernels.backward.pipelined.kind import NARROW_BYTES, Kind
from normlab.kernels.backward.pipelined.layout import ACCUMULATOR_BYTES, PipelineLayout
from normlab.stages.recompute import clamp_by_magnitude

LEAST, MOST = 2.0**-126, 2.0**126  # between these, a float32 and its reciprocal are normal numbers


def offsets(layout: PipelineLayout, kind: Kind) -> tuple[int, int]:
    """Return the offsets of gamma and beta in the block's shared memory, in elements of a parameter."""
    # The layout counts in accumulators of 4 bytes, and these arrays in 2 bytes.
    start = layout.parameters_at * ACCUMULATOR_BYTES // NARROW_BYTES
    return start, start + kind.weighted * layout.thread_map.columns


@cache
def fetcher(layout: PipelineLayout, kind: Kind) -> Any:
    """Return `fetch_parameters`, which starts the parameters' asynchronous copies, as a group of their own.

    Of rows that begin anywhere it starts none: no vector of their parameters begins with a vector of memory.
    """
    thread_map, aligned = layout.thread_map, layout.alignments == 1
    gamma_at, beta_at = offsets(layout, kind)
    vectors, width, span, whole = thread_map.loop
    weighted, shifted = kind.weighted, kind.memory_efficient and kind.biased

    @cuda.jit(device=True)
    def fetch_parameters(operands, memory, share):
        if aligned and share.group == 0:  # once per block: all rows have the same parameters
            for v in range(vectors):
                column = share.first + v * span
                if whole or column < operands.grad_input.shape[1]:
                    if weighted:
                        copy_async(
                            memory.parameters, gamma_at + v * span + share.offset, operands.weight, column, width
                        )
                    if shifted:  # beta is needed to recompute x̂ alone
                        copy_async(memory.parameters, beta_at + v * span + share.offset, operands.bias, column, width)
        commit_copies()  # in the other row groups an empty group: all threads count the same number of groups

    return fetch_parameters


@cuda.jit(device=True)
def nearest(column, n2):
    """Return the column of a row that is nearest to `column`: beside the row, where gradients are 0, any will do."""
    return min(max(column, 0), n2 - 1)


@cache
def mover(layout: PipelineLayout, dtype: Any, offset_of_gamma: float, inverted: bool) -> Any:
    """Return the device function `move(parameters, start, array, share, eps) -> rare`, for rows that begin anywhere.

    All threads of the block move its columns of a parameter, neighbouring threads neighbouring columns. Where each
    thread loaded its own, a warp's loads had gaps, and few turns took up to 3.5 us longer.

    start: where the parameter begins in shared memory. inverted: say whether a gamma is rare. rare: True if one of the
    thread's elements is; always False if not inverted.
    """
    columns, threads, rows = layout.thread_map.columns, layout.thread_map.threads, layout.rows
    together = rows * threads
    turns, even = -(-columns // together), columns % together == 0

    @cuda.jit(device=True)
    def move(parameters, start, array, share, eps):
        bits = cuda.local.array(turns, parameters.dtype)
        gammas = cuda.local.array(turns, dtype)
        first = share.first - share.offset + share.group * threads + share.thread
        # all loads before the first store: the compiler moves no load across a store
        for turn in range(turns):
            column = nearest(first + turn * together, array.shape[0])
            bits[turn] = load_bits(array, column)
            if inverted:
                gammas[turn] = load(array, column) + cast(offset_of_gamma, gammas)
        rare = False
        for turn in range(turns):
            place = share.group * threads + share.thread + turn * together
            if even or place < columns:
                store(parameters, start + place, bits[turn])
            if inverted:
                rare = rare or is_rare(gammas[turn], eps)
        return rare

    return move


@cuda.jit(device=True)
def is_rare(gamma, eps):
    """Return True if gamma is clamped or its reciprocal is not a normal number: it needs the slow reciprocal."""
    return not (abs(gamma) >= eps and LEAST <= abs(gamma) <= MOST)  # NaN is rare


@cache
def keeper(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return `keep_parameters`, which waits for the block's copies and says whether any gamma is rare."""
    prefetched, aligned = layout.prefetched, layout.alignments == 1
    weighted, shifted, (gamma_at, beta_at) = kind.weighted, kind.memory_efficient and kind.biased, offsets(layout, kind)
    inverted = kind.memory_efficient and kind.weighted
    # A thread that takes one row, once, would look at as many gammas as it inverts: it takes all of them for rare.
    asks = inverted and not layout.once
    move_gammas, move_betas = mover(layout, dtype, kind.offset, asks), mover(layout, dtype, 0.0, False)
    find_rare = rare_finder(layout, kind, dtype)

    @cuda.jit(device=True)
    def keep_parameters(operands, memory, share):
        rare = inverted
        if not aligned:
            if weighted:
                rare = move_gammas(memory.parameters, gamma_at, operands.weight, share, operands.eps)
            if shifted:
                move_betas(memory.parameters, beta_at, operands.bias, share, operands.eps)
        wait_copies(prefetched)  # the rows' copies, which were started later, may still be in flight
        # A barrier: the parameters are in shared memory before any thread reads them.
        if aligned or not asks:
            cuda.syncthreads()
            return find_rare(operands, memory, share) if asks else inverted
        return cuda.syncthreads_or(int32(rare)) != 0

    return keep_parameters


@cache
def rare_finder(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `find_rare(operands, memory, share)`: whether any gamma of the thread's is rare.

    A kernel asks once, not per row, and in shared memory: loads from global memory waited for each other, 1.2 us where
    rows are few.
    """
    vectors, width, span, _ = layout.thread_map.loop
    load_gammas, _, _, _ = readers(layout, kind)

    @cuda.jit(device=True)
    def find_rare(operands, memory, share):
        gammas = cuda.local.array(width, dtype)
        rare = False
        # A while loop, as in `passes.unclamped_adder`: a for loop would be unrolled and take registers.
        v = 0
        while v < vectors and share.first + v * span < operands.grad_input.shape[1]:
            load_gammas(gammas, memory.parameters, v, share.offset, operands.weight)
            for k in range(width):
                rare = rare or is_rare(gammas[k], operands.eps)
            v += 1
        return rare

    return find_rare


@cache
def readers(layout: PipelineLayout, kind: Kind) -> tuple[Any, Any, Any, Any]:
    """Return the device functions that load parameters of 16 bits."""
    span, width, offset_of_gamma = layout.thread_map.span, layout.thread_map.width, kind.offset
    gamma_at, beta_at = offsets(layout, kind)

    @cuda.jit(device=True)
    def load_gammas(gammas, parameters, v, offset, weight):
        load_bits_into(gammas, 0, parameters, gamma_at + v * span + offset, width, weight)
        if offset_of_gamma:
            for k in range(width):
                gammas[k] += cast(offset_of_gamma, gammas)

    @cuda.jit(device=True)
    def load_betas(betas, parameters, v, offset, bias):
        load_bits_into(betas, 0, parameters, beta_at + v * span + offset, width, bias)

    @cuda.jit(device=True)
    def load_clamped(gammas, parameters, v, offset, weight, eps):
        load_gammas(gammas, parameters, v, offset, weight)
        for k in range(width):
            gammas[k] = clamp_by_magnitude(gammas[k], eps)

    @cuda.jit(device=True)
    def load_inverses(gammas, inverses, parameters, v, offset, weight, eps, rare):
        if rare:  # decided once per thread, for all of its columns and rows
            load_clamped(gammas, parameters, v, offset, weight, eps)
            for k in range(width):
                inverses[k] = reciprocal(gammas[k])
        else:
            load_gammas(gammas, parameters, v, offset, weight)
            for k in range(width):
                inverses[k] = reciprocal_of_normal(gammas[k])

    return load_gammas, load_clamped, load_inverses, load_betas
