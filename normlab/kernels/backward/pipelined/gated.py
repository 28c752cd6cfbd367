"""Make both passes of the pipelined backward over a row that goes through a gate: an RMSNorm's (`stages.gate`).

    first pass    dy' x̂ goes to the columns' sums, and γ dy' x̂ to the row's sum
    second pass   through = (γ dy' - x̂ mean(γ dy' x̂)) invvar, and from it the gradients of x and of the gate

The gate comes in the third array's stages.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load_bits_into, store_vector_from
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.parameters import readers
from normlab.stages.gate import Gate, gated_gradients, gated_normaliser, silus

ALONE_UP_TO = 256  # threads per block, of which the compiler may choose how many a multiprocessor holds


@cache
def vector_loader(layout: PipelineLayout, kind: Kind) -> Any:
    """Return the device function `load(values, grads, gates, gammas, operands, memory, share, row, v)`.

    It loads the thread's vector v of the row's three arrays, and of gamma, from shared memory.
    """
    width, span = layout.thread_map.width, layout.thread_map.span
    grads_at, thirds_at, weighted = layout.grads_at, layout.thirds_at, kind.weighted
    load_gammas, *_ = readers(layout, kind)

    @cuda.jit(device=True)
    def load(values, grads, gates, gammas, operands, memory, share, row, v):
        at = row.at + v * span
        load_bits_into(values, 0, memory.saved_stages, at, width, operands.saved)
        load_bits_into(grads, 0, memory.grad_stages, grads_at + at, width, operands.grad_output)
        load_bits_into(gates, 0, memory.saved_stages, thirds_at + at, width, operands.gate)
        if weighted:
            load_gammas(gammas, memory.parameters, v, share.offset, operands.weight)

    return load


def kept_values(layout: PipelineLayout, kind: Kind) -> int:
    """Return the size of `Memory.kept`: how many values per thread registers keep from pass to pass, at least 1."""
    if kind.gating is None or not layout.keeps:
        return 1
    return 3 * layout.thread_map.width


def resident(layout: PipelineLayout, kind: Kind) -> int:
    """Return how many blocks a multiprocessor must have registers for, at least."""
    # With what registers keep, a block of 512 threads would be alone: 0.63 of a copy instead of 0.87 at 4096 columns of
    # bfloat16 on an H200.
    if kept_values(layout, kind) > 1 and layout.threads > ALONE_UP_TO:
        return 2
    return layout.resident if layout.blocks == 1 else layout.resident_in_clusters(kind.parameter_bytes)


@cache
def keeper(layout: PipelineLayout, gating: Gate) -> tuple[Any, Any]:
    """Return the device functions with which an element goes from the first pass to the second.

        keep(kept, k, value, xhat, grad, g, silu, slope, gamma)             grad: of the output's gradient
        finish(kept, k, grad, scale, mean_slope) -> (grad of x, of the gate)    grad: times gamma

    mean_slope: mean(g x̂) invvar.
    """
    width, both = layout.thread_map.width, gated_gradients(gating)

    @cuda.jit(device=True)
    def keep_after(kept, k, value, xhat, grad, g, silu, slope, gamma):
        kept[k], kept[width + k] = g, xhat
        # The gate's gradient needs no mean: it is made already, and the second pass reads no shared memory.
        _, kept[2 * width + k] = both(value, xhat, grad, g, silu, slope, gamma)

    @cuda.jit(device=True)
    def finish_after(kept, k, grad, scale, mean_slope):
        return kept[k] * scale - kept[width + k] * mean_slope, kept[2 * width + k]

    @cuda.jit(device=True)
    def keep_before(kept, k, value, xhat, grad, g, silu, slope, gamma):
        # The second pass reads grad and gamma again: a fourth value spilled 24 bytes in blocks of 512 threads.
        kept[k], kept[width + k], kept[2 * width + k] = value, silu, slope

    @cuda.jit(device=True)
    def finish_before(kept, k, grad, scale, mean_slope):
        value, silu, slope = kept[k], kept[width + k], kept[2 * width + k]
        xhat = value * silu * scale
        return both(value, xhat, grad, grad * scale - xhat * mean_slope, silu, slope, None)

    return (keep_after, finish_after) if gating.after_norm else (keep_before, finish_before)


@cache
def share_adder(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `add_up_share(…) -> (sum of g x̂, 0)` in place of `passes.share_adder`'s."""
    vectors, width, span, whole = layout.thread_map.loop
    load, weighted, (summed, _) = vector_loader(layout, kind), kind.weighted, kind.sums
    xhat_and_grad, (silu_of, silu_and_slope) = gated_normaliser(kind.gating, dtype), silus(dtype)
    # Elsewhere both passes compute silu, because keeping it would take as many registers as the row. A thread with one
    # vector has these registers: a row of 128 bfloat16 takes 341 instructions instead of 475.
    keeps, (keep, _) = layout.keeps, keeper(layout, kind.gating)

    @cuda.jit(device=True)
    def add_up_share(operands, memory, share, row, rare, sums):
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gates = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        sum_gx = cast(0, values)
        for v in range(vectors):
            if whole or share.first + v * span < operands.grad_input.shape[1]:
                load(values, grads, gates, gammas, operands, memory, share, row, v)
                for k in range(width):
                    gamma = gammas[k] if weighted else None
                    silu, slope = silu_and_slope(gates[k], gates) if keeps else (silu_of(gates[k], gates), None)
                    # From an output x̂ is divided by γ silu(z), clamped as a product. So shared memory holds the plain
                    # gamma alone, and neither a clamped one nor its inverse.
                    xhat, grad = xhat_and_grad(values[k], grads[k], silu, gamma, row.scale, operands.eps)
                    product = grad * xhat
                    if summed:
                        sums.weight[v * width + k] += product
                    if weighted:
                        product *= gammas[k]
                        grad *= gammas[k]
                    sum_gx += product
                    if keeps:
                        keep(memory.kept, k, values[k], xhat, grads[k], grad, silu, slope, gamma)
        return sum_gx, cast(0, values)

    return add_up_share


@cache
def vector_storer(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `store_vector(v, operands, memory, share, row, rare, slope, shift)`.

    It stores both gradients of the thread's vector v. slope: mean(g x̂) invvar.
    """
    _, width, span, whole = layout.thread_map.loop
    load, weighted = vector_loader(layout, kind), kind.weighted
    xhat_and_grad, (_, silu_and_slope) = gated_normaliser(kind.gating, dtype), silus(dtype)
    both, keeps, (_, finish) = gated_gradients(kind.gating), layout.keeps, keeper(layout, kind.gating)

    @cuda.jit(device=True)
    def store_vector(v, operands, memory, share, row, rare, slope, shift):
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gates = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        column = share.first + v * span
        if whole or column < operands.grad_input.shape[1]:
            load(values, grads, gates, gammas, operands, memory, share, row, v)  # no code loads what is kept instead
            for k in range(width):
                gamma = gammas[k] if weighted else None
                if keeps:
                    grad = grads[k] * gammas[k] if weighted else grads[k]
                    grads[k], gates[k] = finish(memory.kept, k, grad, row.scale, slope)
                else:
                    silu, silu_slope = silu_and_slope(gates[k], gates)
                    xhat, grad = xhat_and_grad(values[k], grads[k], silu, gamma, row.scale, operands.eps)
                    if weighted:
                        grad *= gammas[k]
                    through = grad * row.scale - xhat * slope
                    grads[k], gates[k] = both(values[k], xhat, grads[k], through, silu, silu_slope, gamma)
            store_vector_from(operands.grad_input, (row.number, column), grads, 0, width)
            store_vector_from(operands.grad_gate, (row.number, column), gates, 0, width)

    return store_vector
