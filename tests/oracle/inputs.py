"""Rows, weights and gradients that are hard on a norm, and the comparison of a whole kernel with the oracle."""

import numpy as np
from numpy_kernels import stored

from normlab import oracle

WIDTHS = (1, 2, 31, 32, 33, 127, 128, 129, 385, 769)


def normal(rng, n1, n2):
    return rng.normal(size=(n1, n2))


def far_from_zero(rng, n1, n2):
    """Mean ≫ spread."""
    return 1e3 + rng.normal(size=(n1, n2))


def drifting(rng, n1, n2):
    """Steps so small that Welford's mean in float32 does not move at all, while the true one does."""
    return 1 + np.arange(1, n2 + 1) * 2.0**-24 * 0.99 * np.ones((n1, 1))


def constant(rng, n1, n2):
    """Equal values; their sums round the same way again and again."""
    return rng.uniform(1, 2, size=(n1, 1)) * np.ones(n2)


def almost_constant(rng, n1, n2):
    """Equal values but for the signs of half of them."""
    return rng.uniform(1, 2, size=(n1, 1)) * np.where(np.arange(n2) < n2 / 2, 1, -1)


def outlier(rng, n1, n2):
    """One feature at 220 against a spread of 1, as in trained transformers."""
    x = rng.normal(size=(n1, n2))
    x[:, n2 // 2] += 220
    return x


def tiny(rng, n1, n2):
    """Squares far below the smallest subnormal float32."""
    return rng.normal(size=(n1, n2)) * 1e-30


def subnormal(rng, n1, n2):
    return rng.normal(size=(n1, n2)) * 1e-42


def faint(rng, n1, n2):
    """Squares around the smallest subnormal float32."""
    return rng.normal(size=(n1, n2)) * 1e-22


def huge(rng, n1, n2):
    return rng.normal(size=(n1, n2)) * 1e15


def distant(rng, n1, n2):
    """The mean's square overflows float32, the distances' squares do not."""
    return 3e19 + rng.normal(size=(n1, n2)) * 1e16


def overflowing(rng, n1, n2):
    return rng.normal(size=(n1, n2)) * 1e25


ORDINARY = (normal, far_from_zero, drifting, constant, almost_constant, outlier)
ROWS = (*ORDINARY, tiny, subnormal, faint, huge, distant, overflowing)


def hard_weights(rng, n2, eps):
    """Drawn from zero, tiny, around eps, ordinary and large, with both signs and both zeros."""
    e = abs(eps)
    return rng.choice(np.array([0, -0.0, 1e-38, -1e-38, 1e-20, e / 2, -e / 2, e, -e, 2 * e, -2 * e, 1, -1, 1e4]), n2)


def within(values, dtype):
    """Values as the kernel is given them: in a storage format, and finite in it."""
    largest = float(oracle.floats.float_format(dtype).largest)
    return stored(np.clip(values, -largest, largest), dtype)


def compare(
    kernels, x, weight, bias, grad_output, eps, memory_efficient, *, own_statistics, assess=oracle.assert_within
):
    """Run forward and backward, and give {quantity: largest error / bound}; `assess` may assert or not.

    With `own_statistics` the backward gets what the forward computed, else the oracle's values, rounded to storage.
    """
    n1, n2 = x.shape
    arithmetic = kernels.arithmetic(n1, n2)
    parameters = (weight,) if kernels.rms else (weight, bias)
    norm = "rms_norm" if kernels.rms else "layer_norm"
    value, bound, backward, backward_bound = (
        getattr(oracle, norm + suffix) for suffix in ("", "_bound", "_backward", "_backward_bound")
    )
    want, off = value(x, n2, *parameters, eps), bound(x, n2, *parameters, eps, arithmetic)
    got = kernels.forward(x, *(weight, None if kernels.rms else bias), eps)
    result = {"output": (got.output, want.output, off.output), "invvar": (got.invvar, want.invvar, off.invvar)}
    if not kernels.rms:
        result["mean"] = (got.mean, want.mean, off.mean)

    errors = {}
    if own_statistics:
        output, mean, invvar = got
        errors = {"invvar_error": off.invvar, "output_error": off.output}
        errors |= {} if kernels.rms else {"mean_error": off.mean}
    else:
        with np.errstate(over="ignore"):
            output, invvar = stored(want.output, kernels.output), want.invvar.astype(kernels.U)
            mean = None if kernels.rms else want.mean.astype(kernels.U)
    want = backward(grad_output, x, n2, *parameters, eps)
    off = backward_bound(grad_output, x, n2, *parameters, eps, arithmetic, memory_efficient=memory_efficient, **errors)
    saved = output if memory_efficient else x
    got = kernels.backward(
        grad_output, saved, mean, invvar, weight, None if kernels.rms else bias, eps, memory_efficient
    )
    for name in got._fields:
        if getattr(want, name) is not None:
            result[name] = tuple(getattr(side, name) for side in (got, want, off))
    return {name: assess(*sides, name) for name, sides in result.items()}


def ratio(got, want, bound, _what):
    return oracle.ratio(got, want, bound)
