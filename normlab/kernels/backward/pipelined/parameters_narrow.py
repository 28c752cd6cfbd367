"""Keep the parameters in shared memory in their own 16 bits; `parameters` says why."""

from functools import cache
from typing import Any

from normlab.engine import (
    cast,
    commit_copies,
    copy_async,
    cuda,
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
from normlab.stages.output import parameter_loader
from normlab.stages.recompute import clamp_by_magnitude

LEAST, MOST = 2.0**-126, 2.0**126  # between these, a float32 and its reciprocal are normal numbers


def offsets(layout: PipelineLayout, kind: Kind) -> tuple[int, int]:
    """Return the offsets of gamma and beta in the block's shared memory, in elements of a parameter."""
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
def mover(layout: PipelineLayout) -> Any:
    """Return the device function `move(parameters, start, array, share)`, which moves the thread's elements one by one.

    start: where the parameter begins in shared memory.
    """
    vectors, width, span, _ = layout.thread_map.loop
    elements = layout.thread_map.elements

    @cuda.jit(device=True)
    def move(parameters, start, array, share):
        bits = cuda.local.array(elements, parameters.dtype)
        # all loads before the first store: the compiler moves no load across a store
        for v in range(vectors):
            for k in range(width):
                column = share.first + v * span + k
                bits[v * width + k] = load_bits(array, nearest(column, array.shape[0]))
        for v in range(vectors):
            for k in range(width):
                store(parameters, start + v * span + share.offset + k, bits[v * width + k])

    return move


@cache
def keeper(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return `keep_parameters`, which waits until this thread's copies have arrived and looks for rare gammas."""
    thread_map, prefetched, aligned = layout.thread_map, layout.prefetched, layout.alignments == 1
    vectors, width, span, whole = thread_map.loop
    inverted, load_parameters = kind.memory_efficient and kind.weighted, parameter_loader(width, kind.offset)
    weighted, shifted, (gamma_at, beta_at) = kind.weighted, kind.memory_efficient and kind.biased, offsets(layout, kind)
    move, offset_of_gamma = mover(layout), kind.offset

    @cuda.jit(device=True)
    def keep_parameters(operands, memory, share):
        # Ask once per kernel, not per row, whether any gamma needs the slow reciprocal: a gamma that is clamped, or
        # whose reciprocal is not normal.
        gammas = cuda.local.array(width, dtype)
        rare = False
        if inverted:
            for v in range(vectors):
                if whole or share.first + v * span < operands.grad_input.shape[1]:
                    if aligned:
                        load_parameters(gammas, None, operands.weight, None, share.first + v * span)
                    else:
                        for k in range(width):
                            column = nearest(share.first + v * span + k, operands.grad_input.shape[1])
                            gammas[k] = load(operands.weight, column) + cast(offset_of_gamma, gammas)
                    for k in range(width):
                        kept = clamp_by_magnitude(gammas[k], operands.eps)
                        rare = rare or kept != gammas[k] or not LEAST <= abs(kept) <= MOST
        if not aligned and share.group == 0:
            if weighted:
                move(memory.parameters, gamma_at, operands.weight, share)
            if shifted:
                move(memory.parameters, beta_at, operands.bias, share)
        wait_copies(prefetched)  # the rows' copies, which were started later, may still be in flight
        return rare

    return keep_parameters


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
