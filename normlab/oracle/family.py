"""Compute batch, layer, instance and group norm in NumPy float64: one formula over four kinds of index sets.

    y = γ (x - mean_S) / √(σ²_S + ε) + β        x: (N, C, *spatial)

`IndexSets` says for each norm which elements of x form a set S. A set, reshaped, is a row, so the layer norm's
functions compute all four norms. Source: Wu and He, "Group Normalization", 2018, section 3. Bounds: `family_bounds`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.floats import Extended, ExtendedArray, extended
from normlab.oracle.values import NormGradients, NormResult, layer_norm, layer_norm_backward


@dataclass(frozen=True)
class IndexSets:
    """A view of x as (batches, outer, sets, channels, run): the set (b, s) is all of x[b, :, s, :, :].

    The statistics have the shape `shape`. Parameters have one element per (s, channel), and the shape `parameters`.
    """

    batches: int
    outer: int
    sets: int
    channels: int
    run: int
    shape: tuple[int, ...]
    parameters: tuple[int, ...]

    @property
    def split(self) -> tuple[int, ...]:
        """Return the five dimensions."""
        return self.batches, self.outer, self.sets, self.channels, self.run

    @property
    def values(self) -> int:
        """Return how many values a set has."""
        return self.outer * self.channels * self.run

    def rows(self, array: ArrayLike, s: int) -> ExtendedArray:
        """Return the sets (b, s), for all b, of an array shaped like x: (batches, values)."""
        return extended(array).reshape(self.split)[:, :, s].reshape(self.batches, self.values)

    def row_parameter(self, parameter: ArrayLike | None, s: int) -> ExtendedArray | None:
        """Return a parameter, repeated for the values of a set (b, s): (values,)."""
        if parameter is None:
            return None
        own = extended(parameter).reshape(self.sets, self.channels)[s]
        return np.broadcast_to(own[:, None], (self.outer, self.channels, self.run)).reshape(-1)

    def column_sum(self, values: Any) -> ExtendedArray:
        """Add up the values of one set's row over each channel: (channels,)."""
        return extended(values).reshape(self.outer, self.channels, self.run).sum(axis=(0, 2))

    def like_x(self, rows: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Assemble an array shaped like x from the results of `rows`, one entry for each s."""
        split = [extended(one).reshape(self.batches, self.outer, self.channels, self.run) for one in rows]
        return np.stack(split, axis=2).reshape(shape).astype(np.float64)

    def statistics(self, columns: Sequence[Any]) -> np.ndarray:
        """Assemble the statistics, in their shape, from one entry (batches,) for each s."""
        return np.stack([extended(one) for one in columns], axis=1).reshape(self.shape).astype(np.float64)


def batch_sets(shape: tuple[int, ...]) -> IndexSets:
    """Return batch norm's index sets: a set is a channel.

    >>> batch_sets((8, 3, 5, 5)).split
    (1, 8, 3, 1, 25)
    """
    n, c, *spatial = shape
    return IndexSets(1, n, c, 1, prod(spatial), (c,), (c,))


def instance_sets(shape: tuple[int, ...]) -> IndexSets:
    """Return instance norm's index sets: a set is one channel of one sample."""
    n, c, *spatial = shape
    return IndexSets(n, 1, c, 1, prod(spatial), (n, c), (c,))


def group_sets(shape: tuple[int, ...], num_groups: int) -> IndexSets:
    """Return group norm's index sets: a set is one group of neighbouring channels of one sample."""
    n, c, *spatial = shape
    return IndexSets(n, 1, num_groups, c // num_groups, prod(spatial), (n, num_groups), (c,))


def layer_sets(shape: tuple[int, ...], dimensions: int) -> IndexSets:
    """Return layer norm's index sets: a set covers the last `dimensions` dimensions of the shape."""
    leading, normalized = shape[: len(shape) - dimensions], shape[len(shape) - dimensions :]
    return IndexSets(prod(leading), 1, 1, prod(normalized), 1, leading, normalized)


def family_norm(
    x: ArrayLike, sets: IndexSets, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-5
) -> NormResult:
    """Return (output, mean, invvar) with the statistics of x itself; mean and invvar have the shape `sets.shape`.

    >>> family_norm([[1.0, 5.0], [3.0, 5.0]], batch_sets((2, 2)), eps=0.0).mean.tolist()
    [2.0, 5.0]
    """
    return over_sets(layer_norm, x, sets, weight, bias, eps)


def over_sets(
    function: Callable[..., NormResult],
    x: ArrayLike,
    sets: IndexSets,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    *options: Any,
) -> NormResult:
    """Return what a layer norm's function, or its bound's, returns for the rows of every set, in the family's shapes.

    options: further arguments of the function, after weight and bias.
    """
    results = [
        function(sets.rows(x, s), sets.values, sets.row_parameter(weight, s), sets.row_parameter(bias, s), *options)
        for s in range(sets.sets)
    ]
    output, mean, invvar = ([result[k] for result in results] for k in range(3))
    return NormResult(sets.like_x(output, np.shape(x)), sets.statistics(mean), sets.statistics(invvar))


def family_norm_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    sets: IndexSets,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> NormGradients:
    """Return the gradients of sum(grad_output · family_norm(x))."""
    of_sets = [
        layer_norm_backward(
            sets.rows(grad_output, s), sets.rows(x, s), sets.values, *always_there(sets, weight, s), eps
        )
        for s in range(sets.sets)
    ]
    return gathered(of_sets, np.shape(x), sets, weight, bias)


def gathered(
    of_sets: list[NormGradients], shape: tuple[int, ...], sets: IndexSets, weight: Any, bias: Any
) -> NormGradients:
    """Return the gradients of all sets, or their bounds, in the family's shapes. shape: of x.

    of_sets: the gradients of each set's rows, with both parameters. A channel's parameter adds up its columns.
    """

    def summed(columns: list[Any]) -> np.ndarray:
        return np.concatenate([sets.column_sum(one) for one in columns]).reshape(sets.parameters).astype(np.float64)

    return NormGradients(
        sets.like_x([one.grad_input for one in of_sets], shape),
        None if weight is None else summed([one.grad_weight for one in of_sets]),
        None if bias is None else summed([one.grad_bias for one in of_sets]),
    )


def always_there(sets: IndexSets, weight: ArrayLike | None, s: int) -> tuple[ExtendedArray, ExtendedArray]:
    """Return the weight, or ones, and a bias of zeros, so that both gradients are always computed."""
    given = sets.row_parameter(weight, s)
    return np.ones(sets.values, Extended) if given is None else given, np.zeros(sets.values, Extended)


def evaluated_norm(
    x: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> NormResult:
    """Return batch norm in evaluation: the caller gives the statistics (C,); x is (N, C, *spatial)."""
    mean, invvar = extended(running_mean), 1 / np.sqrt(extended(running_var) + Extended(eps))
    gamma, beta = (None if given is None else extended(given) for given in (weight, bias))
    output = (extended(x) - along(mean, x)) * along(invvar, x)
    if gamma is not None:
        output = output * along(gamma, x)
    if beta is not None:
        output = output + along(beta, x)
    return NormResult(output.astype(np.float64), mean.astype(np.float64), invvar.astype(np.float64))


def evaluated_norm_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> NormGradients:
    """Return the gradients of sum(grad_output · evaluated_norm(x)); the statistics do not depend on x."""
    dy = extended(grad_output)
    normalised = evaluated_norm(x, running_mean, running_var, None, None, eps)
    grad_input = dy * along(1 / np.sqrt(extended(running_var) + Extended(eps)), x)
    if weight is not None:
        grad_input = grad_input * along(extended(weight), x)
    others = tuple(axis for axis in range(dy.ndim) if axis != 1)
    return NormGradients(
        grad_input.astype(np.float64),
        None if weight is None else (dy * normalised.output).sum(axis=others).astype(np.float64),
        None if bias is None else dy.sum(axis=others).astype(np.float64),
    )


def along(values: np.ndarray, x: ArrayLike) -> np.ndarray:
    """Return one value per channel, shaped to be broadcast against x: (1, C, 1, …)."""
    return values.reshape(1, -1, *[1] * (np.ndim(x) - 2))
