"""Bound the error of a kernel's batch, layer, instance or group norm: the layer norm's bounds, set by set.

A set is a row (`family`), so the layer norm's bounds hold for it unchanged. A parameter's gradient adds up several
columns of such rows. `Arithmetic.column_terms` and `column_merges` count the whole chain of additions over all values
of a channel, and the gradient is rounded to storage once, at the end.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.backward_bounds import layer_norm_backward_bound
from normlab.oracle.family import IndexSets, always_there, batch_sets, gathered, over_sets
from normlab.oracle.floats import Extended, ExtendedArray, float_format
from normlab.oracle.forward_bounds import finished, inverse_root, layer_norm_bound
from normlab.oracle.inexact import Inexact, held_exactly
from normlab.oracle.values import NormGradients, NormResult


def family_norm_bound(
    x: ArrayLike,
    sets: IndexSets,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
) -> NormResult:
    """Return elementwise absolute bounds on |kernel - family_norm(x, …)|, shaped like its result."""
    return over_sets(layer_norm_bound, x, sets, weight, bias, eps, arithmetic)


def family_norm_backward_bound(
    grad_output: ArrayLike,
    x: ArrayLike,
    sets: IndexSets,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
    errors: NormResult,
) -> NormGradients:
    """Return elementwise absolute bounds on |kernel - family_norm_backward(…)|; `errors` bounds the forward's errors.

    The parameters' gradients are bounded before their rounding to storage, which `stored` adds.
    """
    unstored = replace(arithmetic, parameter=arithmetic.accumulator)
    mean_errors, invvar_errors = (
        np.asarray(error).reshape(sets.batches, sets.sets) for error in (errors.mean, errors.invvar)
    )
    of_sets = [
        layer_norm_backward_bound(
            sets.rows(grad_output, s),
            sets.rows(x, s),
            sets.values,
            *always_there(sets, weight, s),
            eps,
            unstored,
            mean_error=mean_errors[:, s],
            invvar_error=invvar_errors[:, s],
        )
        for s in range(sets.sets)
    ]
    return gathered(of_sets, np.shape(x), sets, weight, bias)


def stored(bound: NormGradients, truth: NormGradients, parameter: str) -> NormGradients:
    """Return the bounds with the rounding of the parameters' gradients to storage added."""
    storage = float_format(parameter)

    def rounded(error: np.ndarray | None, exact: np.ndarray | None) -> np.ndarray | None:
        if error is None or exact is None:
            return None
        rounding = storage.unit_roundoff * (np.abs(exact) + error) + float(storage.half_subnormal)
        return (error + rounding) * (1 + 2**-40)

    return NormGradients(
        bound.grad_input,
        rounded(bound.grad_weight, truth.grad_weight),
        rounded(bound.grad_bias, truth.grad_bias),
    )


def evaluated_norm_bound(
    x: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
) -> NormResult:
    """Return elementwise absolute bounds on |kernel - evaluated_norm(x, …)|; the kernel's statistics are exact."""
    with np.errstate(all="ignore"):
        channels = _Channels(x, arithmetic)
        invvar = channels.inverse_root(running_var, eps)
        output = (channels.values(x) - channels.each(running_mean)) * invvar
        if weight is not None:
            output = output * channels.each(weight)
        if bias is not None:
            output = output + channels.each(bias)
        return NormResult(
            channels.like_x(output, float_format(arithmetic.output)),
            np.zeros(channels.count),
            finished(invvar.error, invvar.exact, (channels.count,)),
        )


def evaluated_norm_backward_bound(
    grad_output: ArrayLike,
    x: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
) -> NormGradients:
    """Return elementwise absolute bounds on |kernel - evaluated_norm_backward(…)|."""
    with np.errstate(all="ignore"):
        channels, storage = _Channels(x, arithmetic), float_format(arithmetic.parameter)
        dy, invvar = channels.values(grad_output), channels.inverse_root(running_var, eps)
        grad_input = (dy if weight is None else dy * channels.each(weight)) * invvar
        xhat = (channels.values(x) - channels.each(running_mean)) * invvar
        sums = (dy * xhat).sum(1, arithmetic.column_sum), dy.sum(1, arithmetic.column_sum)
        grad_weight, grad_bias = (finished(one.stored(storage), one.exact, (channels.count,)) for one in sums)
        return NormGradients(
            channels.like_x(grad_input, float_format(arithmetic.input)),
            None if weight is None else grad_weight,
            None if bias is None else grad_bias,
        )


class _Channels:
    """Convert arrays shaped like x, (N, C, *spatial), to numbers with an error, (C, values), and back."""

    def __init__(self, x: ArrayLike, arithmetic: Arithmetic):
        self.shape, self.arithmetic = np.shape(x), arithmetic
        self.sets = batch_sets(self.shape)
        self.count = self.shape[1]

    def values(self, array: ArrayLike) -> Inexact:
        rows = [self.sets.rows(array, s) for s in range(self.count)]
        return held_exactly(np.concatenate(rows), self.arithmetic)

    def each(self, values: ArrayLike) -> Inexact:
        return held_exactly(np.asarray(values).astype(np.float64).astype(Extended)[:, None], self.arithmetic)

    def inverse_root(self, variance: ArrayLike, eps: float) -> Inexact:
        held = self.each(variance)
        exact: ExtendedArray = 1 / np.sqrt(held.exact + Extended(eps))
        return inverse_root(held, eps, exact)

    def like_x(self, values: Inexact, storage) -> np.ndarray:
        error = finished(values.stored(storage), values.exact, values.exact.shape)
        return self.sets.like_x(list(error[:, None]), self.shape)
