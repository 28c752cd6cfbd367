"""Make both passes of the pipelined backward over a row that goes through a gate: an RMSNorm's (`stages.gate`).

    first pass    dy' x̂ goes to the columns' sums, and γ dy' x̂ to the row's sum
    second pass   through = (γ dy' - x̂ mean(γ dy' x̂)) invvar, and from it the gradients of x and of the gate

The gate comes in the third array's stages. Both passes compute silu from it: keeping silu from pass to pass would take
as many registers as the row. x̂ is recomputed from an output element by element, divided by γ silu(z) as it is after
both are multiplied and clamped, so shared memory holds the plain gamma alone.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load_bits_into, store_vector_from
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.pipelined.parameters import readers
from normlab.stages.gate import gated_gradients, gated_normaliser, silus


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


@cache
def share_adder(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `add_up_share(…) -> (sum of g x̂, 0)` in place of `passes.share_adder`'s."""
    vectors, width, span, whole = layout.thread_map.loop
    load, weighted, (summed, _) = vector_loader(layout, kind), kind.weighted, kind.sums
    xhat_and_grad, (silu, _) = gated_normaliser(kind.gating, dtype), silus(dtype)

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
                    xhat, grad = xhat_and_grad(
                        values[k], grads[k], silu(gates[k], gates), gamma, row.scale, operands.eps
                    )
                    product = grad * xhat
                    if summed:
                        sums.weight[v * width + k] += product
                    if weighted:
                        product *= gammas[k]
                    sum_gx += product
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
    both = gated_gradients(kind.gating)

    @cuda.jit(device=True)
    def store_vector(v, operands, memory, share, row, rare, slope, shift):
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gates = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        column = share.first + v * span
        if whole or column < operands.grad_input.shape[1]:
            load(values, grads, gates, gammas, operands, memory, share, row, v)
            for k in range(width):
                gamma = gammas[k] if weighted else None
                silu, silu_slope = silu_and_slope(gates[k], gates)
                xhat, grad = xhat_and_grad(values[k], grads[k], silu, gamma, row.scale, operands.eps)
                if weighted:
                    grad *= gammas[k]
                through = grad * row.scale - xhat * slope
                grads[k], gates[k] = both(values[k], xhat, grads[k], through, silu, silu_slope, gamma)
            store_vector_from(operands.grad_input, (row.number, column), grads, 0, width)
            store_vector_from(operands.grad_gate, (row.number, column), gates, 0, width)

    return store_vector
