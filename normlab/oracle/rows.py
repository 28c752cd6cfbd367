"""Arguments of a norm, checked and laid out as a matrix: n1 rows to normalise, n2 values in each.

Called by `values` and by the bounds; raises before anything is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import index
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normlab.oracle.floats import ExtendedArray, extended, real

NormalizedShape = SupportsIndex | Sequence[SupportsIndex] | NDArray[np.integer]


@dataclass(frozen=True)
class Rows:
    """The arguments in extended precision. An absent weight is ones, an absent bias zeros."""

    x: ExtendedArray  # (n1, n2)
    weight: ExtendedArray  # (n2,)
    bias: ExtendedArray  # (n2,)
    eps: float
    leading: tuple[int, ...]  # what x's shape has before normalized_shape
    normalized: tuple[int, ...]
    has_weight: bool
    has_bias: bool

    @property
    def n2(self) -> int:
        """How many values a row has."""
        return self.x.shape[1]

    def matrix(self, values: ArrayLike, name: str) -> ExtendedArray:
        """Another array of x's shape, as (n1, n2)."""
        result, want = extended(values, name), self.leading + self.normalized
        if result.shape != want:
            raise ValueError(f"{name} has shape {result.shape}, but x has shape {want}")
        return result.reshape(self.x.shape)

    def column(self, values: ArrayLike, name: str) -> ExtendedArray:
        """One number a row, shaped as x's leading dimensions, as (n1, 1)."""
        result = extended(values, name)
        if result.shape != self.leading:
            raise ValueError(f"{name} has shape {result.shape}, but x has leading dimensions {self.leading}")
        return result.reshape(-1, 1)


def as_rows(
    x: ArrayLike,
    normalized_shape: NormalizedShape,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
) -> Rows:
    """Check the arguments and give the matrix. ValueError for shapes, names both sides; TypeError for the rest."""
    normalized, eps = shape_of(normalized_shape), real(eps)
    if not normalized or prod(normalized) == 0:
        raise ValueError(
            f"normalized_shape={normalized} holds no values: at least one dimension of at least 1 is needed"
        )
    values = extended(x, "x")
    leading = values.shape[: values.ndim - len(normalized)]
    if leading + normalized != values.shape:
        raise ValueError(
            f"normalized_shape={normalized} does not match the trailing dimensions of x, shape {values.shape}"
        )
    return Rows(
        x=values.reshape(prod(leading), prod(normalized)),
        weight=parameter(np.ones(normalized) if weight is None else weight, "weight", normalized),
        bias=parameter(np.zeros(normalized) if bias is None else bias, "bias", normalized),
        eps=eps,
        leading=leading,
        normalized=normalized,
        has_weight=weight is not None,
        has_bias=bias is not None,
    )


def shape_of(normalized_shape: NormalizedShape) -> tuple[int, ...]:
    """A tuple of ints. TypeError for what is neither an integer nor a sequence of such."""
    entries = normalized_shape if isinstance(normalized_shape, Sequence | np.ndarray) else (normalized_shape,)
    try:
        return tuple(index(entry) for entry in entries)
    except TypeError:
        raise TypeError(f"normalized_shape must be an int or a tuple of ints, got {normalized_shape!r}") from None


def parameter(values: ArrayLike, name: str, normalized: tuple[int, ...]) -> ExtendedArray:
    """Weight or bias as (n2,)."""
    result = extended(values, name)
    if result.shape != normalized:
        raise ValueError(f"{name} has shape {result.shape}, but normalized_shape={normalized}")
    return result.reshape(-1)
