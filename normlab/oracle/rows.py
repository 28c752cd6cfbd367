"""Check the arguments of a norm and reshape them to a matrix: n1 rows to normalise, with n2 values each.

`values` and the bounds call this first, so that wrong arguments raise before anything is computed.
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
    leading: tuple[int, ...]  # x's dimensions before normalized_shape
    normalized: tuple[int, ...]
    has_weight: bool
    has_bias: bool

    @property
    def n2(self) -> int:
        """Return how many values a row has."""
        return self.x.shape[1]

    def matrix(self, values: ArrayLike, name: str) -> ExtendedArray:
        """Return another array of x's shape as (n1, n2). Raise ValueError for any other shape."""
        result, want = extended(values, name), self.leading + self.normalized
        if result.shape != want:
            raise ValueError(f"{name} has shape {result.shape}, but x has shape {want}")
        return result.reshape(self.x.shape)

    def column(self, values: ArrayLike, name: str) -> ExtendedArray:
        """Return an array of one number per row, shaped like x's leading dimensions, as (n1, 1)."""
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
    """Check the arguments and return them as rows.

    Raises:
        ValueError: two shapes do not match; the message names both.
        TypeError: an argument has a wrong type.
    """
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
    """Return normalized_shape as a tuple of ints. Raise TypeError unless it is an integer or a sequence of integers."""
    entries = normalized_shape if isinstance(normalized_shape, Sequence | np.ndarray) else (normalized_shape,)
    try:
        return tuple(index(entry) for entry in entries)
    except TypeError:
        raise TypeError(f"normalized_shape must be an int or a tuple of ints, got {normalized_shape!r}") from None


def parameter(values: ArrayLike, name: str, normalized: tuple[int, ...]) -> ExtendedArray:
    """Return weight or bias as (n2,). Raise ValueError for a wrong shape."""
    result = extended(values, name)
    if result.shape != normalized:
        raise ValueError(f"{name} has shape {result.shape}, but normalized_shape={normalized}")
    return result.reshape(-1)
