"""Write a row's output: load gamma and beta, normalise a thread's vectors, and store them.

The forward steps with vectors share these stages. A step that keeps gamma and beta somewhere else than in global memory
loads them itself and takes `vector_normaliser` alone.

weight and bias are (n2,) or None; an absent one is neither loaded nor applied. Widths are constants of a kernel,
because an array in registers takes only constants as indices.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load_vector_into, prefetch, store_vector_from
from normlab.stages.recompute import affine, normalised_from_input
from normlab.stages.vector import ThreadMap

ASKED_TOGETHER = 32  # elements per request: 64 bytes in 16 bits, 128 in 32, which are one line of L2


@cache
def parameter_loader(width: int, offset: float = 0.0) -> Any:
    """Return the device function `load_parameters(gammas, betas, weight, bias, column)`: a vector of each.

    gammas, betas: local, (width,), accumulator dtype; those of an absent parameter stay as they are. offset: gamma is
    weight + offset. Some models store gamma - 1, so that their weights begin as 0 and weight decay pulls gamma to 1.
    """

    @cuda.jit(device=True)
    def load_parameters(gammas, betas, weight, bias, column):
        if weight is not None:  # decided when the kernel is compiled, not when it runs
            load_vector_into(gammas, 0, weight, column, width)
            if offset:
                for k in range(width):
                    gammas[k] += cast(offset, gammas)
        if bias is not None:
            load_vector_into(betas, 0, bias, column, width)

    return load_parameters


@cache
def parameter_prefetcher(threads: int) -> Any:
    """Return the device function `ask_for_parameters(weight, bias, thread, n2)`, for a block of so many threads.

    The threads ask L2 for weight and bias, each for other elements, so that they come from memory beside the rows.
    thread: its number in the block.
    """
    apart = threads * ASKED_TOGETHER

    @cuda.jit(device=True)
    def ask_for_parameters(weight, bias, thread, n2):
        column = thread * ASKED_TOGETHER
        while column < n2:
            if weight is not None:
                prefetch(weight, column)
            if bias is not None:
                prefetch(bias, column)
            column += apart

    return ask_for_parameters


@cache
def vector_normaliser(width: int) -> Any:
    """Return the device function `normalise_vector(values, at, gammas, betas, weight, bias, center, scale)`.

    It replaces values[at], … by gamma (value - center) scale + beta. center: None for a row without a mean.
    """

    @cuda.jit(device=True)
    def normalise_vector(values, at, gammas, betas, weight, bias, center, scale):
        for k in range(width):
            gamma = None if weight is None else gammas[k]
            beta = None if bias is None else betas[k]
            values[at + k] = affine(normalised_from_input(values[at + k], center, scale), gamma, beta)

    return normalise_vector


@cache
def row_writer(thread_map: ThreadMap, dtype: Any, offset: float = 0.0, load_parameters: Any = None) -> Any:
    """Return the device function `write_row(values, output, index, weight, bias, center, scale)`.

    values: the thread's elements of a row, in registers; they are overwritten. index: (row, the thread's first column).
    offset: as in `parameter_loader`. load_parameters: in place of that loader.
    """
    vectors, width, span, _ = thread_map.loop
    filled = thread_map.filled
    load_parameters, normalise_vector = load_parameters or parameter_loader(width, offset), vector_normaliser(width)

    @cuda.jit(device=True)
    def write_row(values, output, index, weight, bias, center, scale):
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        row, first = index
        for v in range(vectors):
            column = first + v * span
            if v < filled or column < output.shape[1]:
                # A vector at a time, from L1 or L2: all parameters would take twice the registers of the row.
                load_parameters(gammas, betas, weight, bias, column)
                normalise_vector(values, v * width, gammas, betas, weight, bias, center, scale)
                store_vector_from(output, (row, column), values, v * width, width)

    return write_row
