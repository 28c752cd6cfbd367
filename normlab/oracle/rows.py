"""Arguments of a norm, checked and laid out as a matrix: n1 rows to normalise, n2 values in each.

Called by `values` and by the bounds; raises before anything is computed.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.floats import Extended, ExtendedArray, extended


@dataclass(frozen=True)
class Rows:
    """The arguments in extended precision. An absent weight is ones, an absent bias zeros."""

    x: ExtendedArray  # (n1, n2)
    weight: ExtendedArray  # (n2,)
    bias: ExtendedArray  # (n2,)
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
        shape, want = np.shape(values), self.leading + self.normalized
        if shape != want:
            raise ValueError(f"{name} has shape {shape}, but x has shape {want}")
        return extended(values).reshape(self.x.shape)

    def column(self, values: ArrayLike, name: str) -> ExtendedArray:
        """One number a row, shaped as x's leading dimensions, as (n1, 1)."""
        if np.shape(values) != self.leading:
            raise ValueError(f"{name} has shape {np.shape(values)}, but x has leading dimensions {self.leading}")
        return extended(values).reshape(-1, 1)


def as_rows(
    x: ArrayLike, normalized_shape: int | tuple[int, ...], weight: ArrayLike | None, bias: ArrayLike | None
) -> Rows:
    """Check shapes and give the matrix. ValueError names both sides."""
    shape = np.shape(x)
    normalized = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not normalized or prod(normalized) == 0:
        raise ValueError(
            f"normalized_shape={normalized} holds no values: at least one dimension of at least 1 is needed"
        )
    leading = shape[: len(shape) - len(normalized)]
    if leading + normalized != shape:
        raise ValueError(f"normalized_shape={normalized} does not match the trailing dimensions of x, shape {shape}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and np.shape(parameter) != normalized:
            raise ValueError(f"{name} has shape {np.shape(parameter)}, but normalized_shape={normalized}")
    n2 = prod(normalized)
    return Rows(
        x=extended(x).reshape(prod(leading), n2),
        weight=np.ones(n2, Extended) if weight is None else extended(weight).reshape(n2),
        bias=np.zeros(n2, Extended) if bias is None else extended(bias).reshape(n2),
        leading=leading,
        normalized=normalized,
        has_weight=weight is not None,
        has_bias=bias is not None,
    )
