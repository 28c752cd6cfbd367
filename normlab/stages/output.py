"""Write a row's output: load gamma and beta, normalise a thread's vectors, and store them.

The forward steps with vectors share these stages. A step that keeps gamma and beta somewhere else than in global memory
loads them itself and takes `vector_normaliser` alone.

weight and bias are (n2,) or None; an absent one is neither loaded nor applied.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load_vector_into, store_vector_from
from normlab.stages.recompute import affine, normalised_from_input
from normlab.stages.vector import ThreadMap


@cache
def gamma_loader(width: int, offset: float = 0.0) -> Any:
    """Return the device function `load_gammas(gammas, at, weight, column)`: a vector of weight + offset, or nothing.

    gammas: local, accumulator dtype, from gammas[at] on.
    """

    @cuda.jit(device=True)
    def load_gammas(gammas, at, weight, column):
        if weight is not None:  # decided when the kernel is compiled, not when it runs
            load_vector_into(gammas, at, weight, column, width)
            # Some models store gamma - 1, so that their weights begin as 0 and weight decay pulls gamma to 1. The cast:
            # a bare Python float would make the sum float64.
            if offset:
                for k in range(width):
                    gammas[at + k] += cast(offset, gammas)

    return load_gammas


@cache
def parameter_loader(width: int, offset: float = 0.0) -> Any:
    """Return the device function `load_parameters(gammas, betas, weight, bias, column)`: a vector of each.

    gammas, betas: local, (width,), accumulator dtype; those of an absent parameter stay as they are. offset: as in
    `gamma_loader`.
    """
    load_gammas = gamma_loader(width, offset)

    @cuda.jit(device=True)
    def load_parameters(gammas, betas, weight, bias, column):
        load_gammas(gammas, 0, weight, column)
        if bias is not None:
            load_vector_into(betas, 0, bias, column, width)

    return load_parameters


@cache
def row_parameter_loader(thread_map: ThreadMap, offset: float = 0.0) -> Any:
    """Return the device function `load_all(gammas, betas, weight, bias, first, n2)`: the thread's vectors of a row.

    gammas, betas: local, (thread_map.elements,), accumulator dtype. first: the column of the thread's first element.
    """
    vectors, width, span, _ = thread_map.loop
    filled, load_gammas = thread_map.filled, gamma_loader(width, offset)

    @cuda.jit(device=True)
    def load_all(gammas, betas, weight, bias, first, n2):
        for v in range(vectors):
            column = first + v * span
            # a thread without a last vector loads the row's, and does not use it (`vector.row_loader`)
            there = column if v < filled or column < n2 else n2 - width
            load_gammas(gammas, v * width, weight, there)
            if bias is not None:
                load_vector_into(betas, v * width, bias, there, width)

    return load_all


@cache
def vector_normaliser(width: int) -> Any:
    """Return the device function `normalise_vector(values, at, gammas, betas, weight, bias, center, scale)`.

    It replaces values[at], … by gamma (value - center) scale + beta. center: None for a row without a mean.
    """

    @cuda.jit(device=True)
    def normalise_vector(values, at, gammas, betas, weight, bias, center, scale):
        for k in range(width):
            # `width` is a constant, so this loop is unrolled: an array in registers takes only constant indices.
            gamma = None if weight is None else gammas[k]
            beta = None if bias is None else betas[k]
            values[at + k] = affine(normalised_from_input(values[at + k], center, scale), gamma, beta)

    return normalise_vector


@cache
def row_writer(
    thread_map: ThreadMap, dtype: Any, offset: float = 0.0, load_parameters: Any = None, early: bool = False
) -> Any:
    """Return the device function `write_row(values, held, output, index, weight, bias, center, scale)`.

    values: the thread's elements of a row, in registers; they are overwritten. index: (row, the thread's first column).
    offset: as in `parameter_loader`. load_parameters: in place of that loader. early: `row_parameter_loader` has loaded
    the parameters to held, (gammas, betas); otherwise held is not used.
    """
    vectors, width, span, _ = thread_map.loop
    filled = thread_map.filled
    load_parameters, normalise_vector = load_parameters or parameter_loader(width, offset), vector_normaliser(width)

    @cuda.jit(device=True)
    def take(gammas, betas, held, weight, bias, v, column):
        # A constant, so one of the two branches is compiled. `held` has a whole row's vectors, gammas and betas one.
        if early:
            for k in range(width):
                if weight is not None:
                    gammas[k] = held[0][v * width + k]
                if bias is not None:
                    betas[k] = held[1][v * width + k]
        else:
            # A vector at a time, from L1 or L2: all parameters would take twice the registers of the row.
            load_parameters(gammas, betas, weight, bias, column)

    @cuda.jit(device=True)
    def write_row(values, held, output, index, weight, bias, center, scale):
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        row, first = index
        for v in range(vectors):
            column = first + v * span
            # `v < filled` is a constant after unrolling: only a row's last vector has a condition, and none is loaded
            # or stored past the row's end.
            if v < filled or column < output.shape[1]:
                take(gammas, betas, held, weight, bias, v, column)
                normalise_vector(values, v * width, gammas, betas, weight, bias, center, scale)
                store_vector_from(output, (row, column), values, v * width, width)

    return write_row
