"""The two passes over a row of the pipelined backward, and the fetching of a later one, for one thread's share.

    first pass    adds dy x̂ and dy to the columns' sums in registers, and g x̂ and g to the row's
    second pass   grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, once the row's sums are known

Both read the row from shared memory, where `fetch` has had it copied: in between it takes no registers. Every thread
reads what it fetched itself, so that waiting for its own copies is enough.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import (
    cast,
    copy_async,
    cuda,
    load,
    load_bits_into,
    load_vector_into,
    store_vector_from,
)
from normlab.kernels.backward.ring import Layout
from normlab.stages.recompute import clamp_by_magnitude
from normlab.stages.unroll import repeated

MOST_UNROLLED = 384  # threads a block, which leave each the registers for all of its vectors; more leave them for two


class Kind(NamedTuple):
    """Which of the backward's forms a kernel is built for.

    weighted, biased: these gradients are wanted. together: neighbouring elements of parameters and their gradients that
    one instruction may move, as their addresses are; no more than a vector of the row has.
    """

    rms: bool
    memory_efficient: bool
    weighted: bool
    biased: bool
    together: int

    @property
    def parameters(self) -> int:
        """Arrays of parameters in shared memory: gamma; recomputing, gamma clamped, 1 / gamma, and beta."""
        return self.weighted + self.memory_efficient * (self.weighted + self.biased)


def places(layout: Layout, kind: Kind) -> tuple[int, int, int]:
    """Where gamma, 1 / gamma and beta begin in the block's shared memory, in accumulators."""
    start, columns = layout.parameters_at, kind.weighted * layout.deal.columns
    return start, start + columns, start + 2 * columns


@cache
def parameter_place(layout: Layout) -> Any:
    """The device function `lie(start, v, number, place)`: where 16 bytes of the thread's vector v of parameters lie.

    Sixteen bytes are all that a lane moves at once without a bank conflict, and only if the lanes' sixteen bytes follow
    each other: of a vector of eight accumulators, all threads' first halves come first, and then all second halves.
    """
    _, parts, plane = layout.parameter_parts
    span = layout.deal.span

    @cuda.jit(device=True)
    def lie(start, v, number, place):
        return start + v * span + number * plane + (place >> (parts - 1))

    return lie


@cache
def parameter_loader(layout: Layout) -> Any:
    """The device function `load_parameters(target, parameters, start, v, place)`: those of vector v of the thread."""
    part, parts, _ = layout.parameter_parts
    lie = parameter_place(layout)

    @cuda.jit(device=True)
    def load_parameters(target, parameters, start, v, place):
        for number in range(parts):
            load_vector_into(target, number * part, parameters, lie(start, v, number, place), part)

    return load_parameters


@cache
def parameter_storer(layout: Layout) -> Any:
    """The device function `store_parameters(parameters, start, v, place, source, at)`: source[at], … of vector v."""
    part, parts, _ = layout.parameter_parts
    lie = parameter_place(layout)

    @cuda.jit(device=True)
    def store_parameters(parameters, start, v, place, source, at):
        for number in range(parts):
            store_vector_from(parameters, lie(start, v, number, place), source, at + number * part, part)

    return store_parameters


@cache
def parameter_keeper(layout: Layout, kind: Kind, dtype: Any) -> Any:
    """The device function `keep_parameters(…) -> bool`: a thread's share of the parameters, into shared memory, once.

    The first team does it for all. Returns whether one of the thread's gammas was clamped, which is rare. The division
    is made here, once: in the second pass reciprocals took a third of all instructions. All loads come before the first
    store, which the compiler moves none of them across: one after another, 32 loads took longer than a row.
    """
    deal, together = layout.deal, kind.together
    gamma_at, inverse_at, beta_at = places(layout, kind)
    vectors, width, span, whole, elements = deal.vectors, deal.width, deal.span, deal.whole, deal.elements
    store_parameters = parameter_storer(layout)
    memory_efficient = kind.memory_efficient

    @cuda.jit(device=True)
    def keep_parameters(parameters, weight, bias, eps, team, place, first, n2):
        gammas = cuda.local.array(elements, dtype)
        inverses = cuda.local.array(width, dtype)
        betas = cuda.local.array(elements, dtype)
        for v in range(vectors):
            if whole or first + v * span < n2:
                for k in range(0, width, together):
                    if weight is not None:
                        load_vector_into(gammas, v * width + k, weight, first + v * span + k, together)
                    if memory_efficient and bias is not None:
                        load_vector_into(betas, v * width + k, bias, first + v * span + k, together)
        rare = False
        for v in range(vectors):
            if whole or first + v * span < n2:
                if memory_efficient and weight is not None:
                    for k in range(width):
                        gamma = gammas[v * width + k]
                        kept = clamp_by_magnitude(gamma, eps)
                        rare = rare or kept != gamma
                        gammas[v * width + k] = kept
                        inverses[k] = cast(1, parameters) / kept
                    if team == 0:
                        store_parameters(parameters, inverse_at, v, place, inverses, 0)
                if weight is not None and team == 0:
                    store_parameters(parameters, gamma_at, v, place, gammas, v * width)
                if memory_efficient and bias is not None and team == 0:
                    store_parameters(parameters, beta_at, v, place, betas, v * width)
        return rare

    return keep_parameters


@cache
def fetcher(layout: Layout) -> Any:
    """The device function `fetch(saved_ring, grad_ring, saved, grad_output, row, at, first)`: start a row's copies.

    at: where the thread's share lies in the stage. first: its first column.
    """
    deal, grads_at = layout.deal, layout.grads_at
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole

    @cuda.jit(device=True)
    def fetch(saved_ring, grad_ring, saved, grad_output, row, at, first):
        for v in range(vectors):
            column = first + v * span
            if whole or column < saved.shape[1]:
                copy_async(saved_ring, at + v * span, saved, (row, column), width)
                copy_async(grad_ring, grads_at + at + v * span, grad_output, (row, column), width)

    return fetch


@cache
def first_pass(layout: Layout, kind: Kind, dtype: Any) -> Any:
    """The device function `pass_1(…) -> (sum of g x̂, sum of g)` over the thread's share of a row."""
    deal, grads_at = layout.deal, layout.grads_at
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole
    gamma_at, _, beta_at = places(layout, kind)
    load_parameters = parameter_loader(layout)
    rms, memory_efficient, weighted, biased, _ = kind

    @cuda.jit(device=True)
    def pass_1(
        saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
        at, place, first, center, scale, rare, sums_weight, sums_bias,
    ):  # fmt: skip
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        sum_gx = cast(0, values)
        sum_g = cast(0, values)
        for v in range(vectors):
            if whole or first + v * span < saved.shape[1]:
                load_bits_into(values, 0, saved_ring, at + v * span, width, saved)
                load_bits_into(grads, 0, grad_ring, grads_at + at + v * span, width, grad_output)
                if weight is not None and not (memory_efficient and rms):
                    load_parameters(gammas, parameters, gamma_at, v, place)
                if memory_efficient and bias is not None:
                    load_parameters(betas, parameters, beta_at, v, place)
                for k in range(width):
                    grad = grads[k]
                    value = values[k]
                    if memory_efficient:  # value = gamma x̂; the sum for grad_weight is divided by gamma in the end
                        if bias is not None:
                            value -= betas[k]
                        product = grad * value
                        sum_gx += product
                        if weighted:
                            sums_weight[v * width + k] += product
                    else:
                        if mean is not None:
                            value -= center
                        product = grad * value
                        if weighted:
                            sums_weight[v * width + k] += product * scale
                            sum_gx += product * gammas[k]
                        else:
                            sum_gx += product
                    if biased:
                        sums_bias[v * width + k] += grad
                    if not rms:
                        if weighted:
                            sum_g += grad * gammas[k]
                        else:
                            sum_g += grad
        if not memory_efficient:
            sum_gx *= scale
        elif weighted and not rms and rare:  # mean(g) wants gamma as it is: once more, out of the way of all others
            sum_g = cast(0, values)
            v = 0
            while v < vectors and first + v * span < saved.shape[1]:  # in straight lines it takes all others' registers
                load_bits_into(grads, 0, grad_ring, grads_at + at + v * span, width, grad_output)
                for k in range(width):
                    sum_g += grads[k] * load(weight, first + v * span + k)
                v += 1
        return sum_gx, sum_g

    return pass_1


@cache
def second_pass(layout: Layout, kind: Kind, dtype: Any) -> Any:
    """The device function `pass_2(…)`: grad_input of the thread's share of a row, whose means are known.

    grad_input = g invvar - (x̂ steepness + offset)        steepness = mean(g x̂) invvar, offset = mean(g) invvar
    """
    deal, grads_at = layout.deal, layout.grads_at
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole
    gamma_at, inverse_at, beta_at = places(layout, kind)
    load_parameters = parameter_loader(layout)
    rms, memory_efficient = kind.rms, kind.memory_efficient

    @cuda.jit(device=True)
    def one_vector(
        v, saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
        at, place, first, center, scale, steepness, offset, grad_input, row,
    ):  # fmt: skip
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        inverses = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        if whole or first + v * span < saved.shape[1]:
            load_bits_into(values, 0, saved_ring, at + v * span, width, saved)
            load_bits_into(grads, 0, grad_ring, grads_at + at + v * span, width, grad_output)
            if weight is not None:
                load_parameters(gammas, parameters, gamma_at, v, place)
            if memory_efficient and weight is not None:
                load_parameters(inverses, parameters, inverse_at, v, place)
            if memory_efficient and bias is not None:
                load_parameters(betas, parameters, beta_at, v, place)
            for k in range(width):
                value = values[k]
                if mean is not None:
                    value -= center
                if memory_efficient and bias is not None:
                    value -= betas[k]
                if memory_efficient and weight is not None:
                    value *= inverses[k]
                gradient = grads[k]
                if weight is not None:
                    gradient *= gammas[k]
                away = value * steepness
                if not rms:
                    away += offset
                grads[k] = gradient * scale - away
            store_vector_from(grad_input, (row, first + v * span), grads, 0, width)

    # 16-bit rows take a fifth fewer instructions unrolled: 689 where a loop takes 788, at n2 = 4096.
    at_once = 1
    if layout.saved_bytes == 2:
        at_once = deal.vectors if layout.threads <= MOST_UNROLLED else 2 - deal.vectors % 2
    several_vectors = repeated(one_vector, at_once)

    @cuda.jit(device=True)
    def pass_2(
        saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
        at, place, first, center, scale, mean_gx, mean_g, grad_input, row,
    ):  # fmt: skip
        steepness = mean_gx * scale
        if not memory_efficient:  # x̂ is (x - mean) invvar
            steepness *= scale
        offset = mean_g * scale
        for v in range(0, vectors, at_once):
            several_vectors(
                v, saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
                at, place, first, center, scale, steepness, offset, grad_input, row,
            )  # fmt: skip

    return pass_2
