"""Gate a row: multiply it by silu(z) = z σ(z), after its norm (Qwen3-Next) or before it (Mamba-2).

    after the norm      output = x̂ γ silu(z)
    before the norm     output = γ times the RMSNorm of x silu(z)

σ(z) = 1 / (1 + exp(-z)). Derivative: silu'(z) = σ(z) (1 + z σ(-z)).
Source: Dao and Gu, "Transformers are SSMs", 2024 (Mamba-2's gated norm); Hendrycks and Gimpel, "Gaussian Error Linear
Units", 2016 (silu).
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cast, cuda, float64, reciprocal, reciprocal_of_normal
from normlab.stages.recompute import clamp_by_magnitude
from normlab.stages.row_map import RowMap, place_finder
from normlab.stages.vector import ThreadMap, row_loader


class Gate(NamedTuple):
    """How a gate goes with an RMSNorm; constants of a kernel.

    after_norm: the norm's output is gated, else its input. recompute: the kernel is a backward that gets the saved
    output in place of the input; only with after_norm.
    """

    after_norm: bool
    recompute: bool = False


@cache
def sigmoids(dtype: Any) -> Any:
    """Return the device function `sigmoids_of(z, like) -> (σ(z), σ(-z))`. like: an array of z's dtype, dtype."""
    wide = dtype == float64

    @cuda.jit(device=True)
    def exponential(value):
        # In float32 the GPU's fast exponential: half the instructions, off by up to 2 + 1.173 |z| units of the last
        # place.
        return cuda.libdevice.exp(value) if wide else cuda.libdevice.fast_expf(value)

    @cuda.jit(device=True)
    def inverse(value, like):
        return cast(1, like) / value if wide else reciprocal_of_normal(value)  # of 1 to 2

    @cuda.jit(device=True)
    def sigmoids_of(z, like):
        # e = exp(-|z|) is at most 1, so nothing overflows; and both σ(z) and σ(-z) = 1 - σ(z) keep their digits,
        # because neither comes from a subtraction.
        small = exponential(-abs(z))
        larger = inverse(cast(1, like) + small, like)  # of the two: that of |z|
        smaller = small * larger
        return (larger, smaller) if z >= 0 else (smaller, larger)

    return sigmoids_of


@cache
def silus(dtype: Any) -> tuple[Any, Any]:
    """Return the device functions `silu(z, like)` and `silu_and_slope(z, like) -> (silu(z), silu'(z))`."""
    sigmoids_of = sigmoids(dtype)

    @cuda.jit(device=True)
    def silu(z, like):
        return z * sigmoids_of(z, like)[0]

    @cuda.jit(device=True)
    def silu_and_slope(z, like):
        sigma, rest = sigmoids_of(z, like)
        return z * sigma, sigma * (cast(1, like) + z * rest)

    return silu, silu_and_slope


@cache
def row_gater(thread_map: ThreadMap, dtype: Any, gate_map: RowMap | None = None) -> tuple[Any, Any]:
    """Return the device functions that gate a thread's elements of a row in a forward.

        load_gates(gates, gate, row, first)     load them, beside the row itself
        gate_row(values, gates, gate)           multiply the elements by silu

    gate: (n1, n2), or None, for which both do nothing. gates: local, (thread_map.elements,), accumulator dtype.
    gate_map: where the gate's rows lie.
    """
    elements, load_row, (silu, _) = thread_map.elements, row_loader(thread_map), silus(dtype)
    place_of = place_finder(gate_map)

    @cuda.jit(device=True)
    def load_gates(gates, gate, row, first):
        if gate is not None:
            load_row(gates, gate, place_of(row), first)

    @cuda.jit(device=True)
    def gate_row(values, gates, gate):
        if gate is not None:
            for k in range(elements):
                # Past the row's end `load_row` gives 0 for both, so gated values add nothing to the row's sums.
                values[k] *= silu(gates[k], gates)

    return load_gates, gate_row


@cache
def gated_normaliser(gate: Gate, dtype: Any) -> Any:
    """Return the device function `xhat_and_grad(value, grad, silu, gamma, scale, eps)`: one element's (x̂, dy').

    dy' is the gradient at x̂ γ. value: of the saved array. grad: of the output's gradient. silu: of the gate. gamma:
    None without a weight. scale: the row's invvar.
    """
    after_norm, recompute, wide = gate.after_norm, gate.recompute, dtype == float64

    @cuda.jit(device=True)
    def divided(value, divisor):
        # In float32 the fast reciprocal: a correctly rounded division takes several times its instructions.
        return value / divisor if wide else value * reciprocal(divisor)

    @cuda.jit(device=True)
    def xhat_and_grad(value, grad, silu, gamma, scale, eps):
        if recompute:  # value = x̂ γ silu
            factor = silu if gamma is None else gamma * silu
            return divided(value, clamp_by_magnitude(factor, eps)), grad * silu
        if after_norm:
            return value * scale, grad * silu
        return value * silu * scale, grad

    return xhat_and_grad


@cache
def gated_gradients(gate: Gate) -> Any:
    """Return the device function `both(value, xhat, grad, through, silu, slope, gamma) -> (grad of x, of the gate)`.

    through: the gradient of what was normalised, from the norm's own backward. value: of the saved array. grad: of the
    output's gradient. gamma: None without a weight.
    """
    after_norm = gate.after_norm

    @cuda.jit(device=True)
    def both(value, xhat, grad, through, silu, slope, gamma):
        # The output is x̂ γ silu(z), so dy times all except silu, times silu', is the gate's gradient.
        if after_norm:
            normalised = xhat if gamma is None else xhat * gamma
            return through, grad * normalised * slope
        # Here x silu(z) was normalised, and `through` is the gradient there: the product rule gives both.
        return through * silu, through * value * slope

    return both
