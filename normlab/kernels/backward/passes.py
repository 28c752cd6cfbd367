"""Do one thread's share of the pipelined backward: fetch a row, and make the two passes over it.

    first pass    adds dy x̂ and dy to the columns' sums in registers, and g x̂ and g to the row's sums
    second pass   grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, once the row's sums are known

Both passes read the row from shared memory, so it takes no registers in between. Every thread reads only the elements
that it fetched itself: it waits for its own copies and needs no barrier.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, copy_async, cuda, load, load_bits_into, store_vector_from
from normlab.kernels.backward.kind import Kind
from normlab.kernels.backward.parameters import readers
from normlab.kernels.backward.ring import Layout
from normlab.stages.unroll import repeated

MOST_UNROLLED = 384  # threads per block up to which registers allow unrolling all vectors; above it, two


@cache
def fetcher(layout: Layout) -> Any:
    """Return the device function `fetch(saved_ring, grad_ring, saved, grad_output, row, at, first)`.

    It starts the copies of the thread's share of a row. at: the share's offset in the pipeline stages. first: its first
    column.
    """
    thread_map, grads_at = layout.thread_map, layout.grads_at
    vectors, width, span, whole = thread_map.vectors, thread_map.width, thread_map.span, thread_map.whole

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
    """Return the device function `pass_1(…) -> (sum of g x̂, sum of g)` over the thread's share of a row."""
    thread_map, grads_at = layout.thread_map, layout.grads_at
    vectors, width, span, whole = thread_map.vectors, thread_map.width, thread_map.span, thread_map.whole
    load_gammas, _, _, load_betas = readers(layout, kind)
    rms, memory_efficient, weighted, biased, narrow, *_ = kind

    @cuda.jit(device=True)
    def pass_1(
        saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
        at, offset, first, center, scale, rare, sums_weight, sums_bias,
    ):  # fmt: skip
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        sum_gx = cast(0, values)
        sum_g = cast(0, values)
        # Vector by vector: only the columns' sums stay in registers from row to row.
        for v in range(vectors):
            if whole or first + v * span < saved.shape[1]:
                load_bits_into(values, 0, saved_ring, at + v * span, width, saved)
                load_bits_into(grads, 0, grad_ring, grads_at + at + v * span, width, grad_output)
                if weight is not None and not (memory_efficient and rms):
                    load_gammas(gammas, parameters, v, offset, weight)
                if memory_efficient and bias is not None:
                    load_betas(betas, parameters, v, offset, bias)
                for k in range(width):
                    grad = grads[k]
                    value = values[k]
                    if memory_efficient:  # value = gamma x̂; `columns.finish` divides the sums for grad_weight by gamma
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
            sum_gx *= scale  # once per row: the products above are with x - mean
        elif weighted and not rms and not narrow and rare:
            # mean(g) needs the gamma that was not clamped, which is only in global memory. A while loop, because the
            # compiler would unroll a for loop and give it the registers of all other phases.
            sum_g = cast(0, values)
            v = 0
            while v < vectors and first + v * span < saved.shape[1]:
                load_bits_into(grads, 0, grad_ring, grads_at + at + v * span, width, grad_output)
                for k in range(width):
                    sum_g += grads[k] * load(weight, first + v * span + k)
                v += 1
        return sum_gx, sum_g

    return pass_1


@cache
def second_pass(layout: Layout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `pass_2(…)`, which stores grad_input of the thread's share of a row.

    grad_input = g invvar - (x̂ steepness + shift)        steepness = mean(g x̂) invvar, shift = mean(g) invvar
    """
    thread_map, grads_at = layout.thread_map, layout.grads_at
    vectors, width, span, whole = thread_map.vectors, thread_map.width, thread_map.span, thread_map.whole
    load_gammas, _, load_inverses, load_betas = readers(layout, kind)
    rms, memory_efficient = kind.rms, kind.memory_efficient

    @cuda.jit(device=True)
    def one_vector(
        v, saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
        at, offset, first, center, scale, steepness, shift, grad_input, row, eps, rare,
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
                if memory_efficient:
                    load_inverses(gammas, inverses, parameters, v, offset, weight, eps, rare)
                else:
                    load_gammas(gammas, parameters, v, offset, weight)
            if memory_efficient and bias is not None:
                load_betas(betas, parameters, v, offset, bias)
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
                    away += shift
                grads[k] = gradient * scale - away
            store_vector_from(grad_input, (row, first + v * span), grads, 0, width)

    # Unrolling saves 16-bit rows an eighth of the instructions: 689 instead of 788 at n2 = 4096.
    at_once = 1
    if layout.saved_bytes == 2:
        at_once = thread_map.vectors if layout.threads <= MOST_UNROLLED else 2 - thread_map.vectors % 2
    several_vectors = repeated(one_vector, at_once)

    @cuda.jit(device=True)
    def pass_2(
        saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
        at, offset, first, center, scale, mean_gx, mean_g, grad_input, row, eps, rare,
    ):  # fmt: skip
        # grad_input = g invvar - (x̂ steepness + shift): two fused operations per element
        steepness = mean_gx * scale
        if not memory_efficient:  # x̂ is (x - mean) invvar
            steepness *= scale
        shift = mean_g * scale
        for v in range(0, vectors, at_once):
            several_vectors(
                v, saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
                at, offset, first, center, scale, steepness, shift, grad_input, row, eps, rare,
            )  # fmt: skip

    return pass_2
