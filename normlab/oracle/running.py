"""Update the running statistics of batch and instance norm after a training batch, and bound a kernel's error.

    running = (1 - momentum) running + momentum new        new: the samples' average of mean and unbiased variance

The mean and the variance of a sample's channel are defined as in `family`, and `moments` bounds their errors.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.family import IndexSets
from normlab.oracle.floats import Extended, ExtendedArray, FloatArray, extended, float_format
from normlab.oracle.forward_bounds import finished
from normlab.oracle.inexact import Inexact, held_exactly
from normlab.oracle.moments import mean_and_variance
from normlab.oracle.rows import as_rows
from normlab.oracle.values import Normalised, normalise


class Running(NamedTuple):
    """The running mean and the running variance, each (C,)."""

    mean: FloatArray
    var: FloatArray


def running_statistics(
    x: ArrayLike, sets: IndexSets, running_mean: ArrayLike, running_var: ArrayLike, momentum: float
) -> Running:
    """Return the running statistics after a batch; sets: `batch_sets` or `instance_sets`, of at least two values each.

    >>> running_statistics([[0.0], [2.0]], IndexSets(1, 2, 1, 1, 1, (1,), (1,)), [0.0], [1.0], 0.5)
    Running(mean=array([0.5]), var=array([1.5]))
    """
    share, new = Extended(momentum), []
    with np.errstate(all="ignore"):
        for s in range(sets.sets):
            _, middle = _middle(x, sets, s)
            new.append((middle.mean.mean(), middle.variance.mean() * _unbiased(sets)))
        of_batch = np.array(new, Extended).reshape(-1, 2).T
        old = np.stack([extended(running_mean), extended(running_var)])
        return Running(*((1 - share) * old + share * of_batch).astype(np.float64))


def running_statistics_bound(
    x: ArrayLike,
    sets: IndexSets,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    momentum: float,
    arithmetic: Arithmetic,
    storage: str,
) -> Running:
    """Return absolute bounds on |kernel - running_statistics(…)|; storage: the running statistics' format.

    The momentum is rounded to the accumulator's format. 1 - momentum, and momentum over the number of samples, round
    once more. The kernel divides the unbiased variance by n - 1 instead of n, or multiplies it by n / (n - 1), which
    takes 2 more roundings. The average is a sum with one term per sample.
    """
    u, m, form = arithmetic.u, abs(Extended(momentum)), float_format(storage)
    one = np.ones((1, 1), Extended)
    keep = Inexact(
        (1 - Extended(momentum)) * one, (u * m + u * (abs(1 - Extended(momentum)) + u * m)) * one, arithmetic
    )
    share = held_exactly(Extended(momentum) / sets.batches * one, arithmetic).rounded_again(2)
    roundings = sets.batches + arithmetic.oracle_sum
    bounds: list[list[float]] = [[], []]
    with np.errstate(all="ignore"):
        for s in range(sets.sets):
            rows, middle = _middle(x, sets, s)
            mean, variance = mean_and_variance(rows, middle, arithmetic)
            unbiased = variance.scaled(_unbiased(sets)).rounded_again(2)
            olds = (extended(running_mean)[s], extended(running_var)[s])
            for bound, old, new in zip(bounds, olds, (mean, unbiased), strict=True):
                result = held_exactly(old * one, arithmetic) * keep + new.sum(0, roundings) * share
                bound.append(float(finished(result.stored(form), result.exact, ())))
    return Running(*(np.array(bound) for bound in bounds))


def _middle(x: ArrayLike, sets: IndexSets, s: int) -> tuple[ExtendedArray, Normalised]:
    """Return the samples' values of a channel (batches, values), and their statistics."""
    rows = as_rows(sets.rows(x, s), sets.values, None, None, 0.0)
    return rows.x, normalise(rows, centred=True)


def _unbiased(sets: IndexSets) -> Extended:
    return Extended(sets.values) / (sets.values - 1)
