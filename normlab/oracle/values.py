"""Compute layer norm and RMS norm, forward and backward: the true results, in float64 for inputs of every dtype.

The functions compute in extended precision (`floats.Extended`) with two-pass variances and pairwise sums, then round
once to float64. NaN and infinity stay in their row's results, and reach the parameter gradients. A negative
variance + eps gives NaN. The tests compare kernels with these numbers, within the bounds of `forward_bounds` and
`backward_bounds`. Source: Ba, Kiros and Hinton, "Layer Normalization", 2016; Zhang and Sennrich, "Root Mean Square
Layer Normalization", 2019.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.floats import ExtendedArray, FloatArray
from normlab.oracle.rows import NormalizedShape, Rows, as_rows


class NormResult(NamedTuple):
    """A forward's results: `output` in x's shape, `mean` (None for RMS norm) and `invvar` in its leading dimensions."""

    output: FloatArray
    mean: FloatArray | None
    invvar: FloatArray


class NormGradients(NamedTuple):
    """A backward's results: `grad_input` in x's shape; the others in normalized_shape, or None without a parameter."""

    grad_input: FloatArray
    grad_weight: FloatArray | None
    grad_bias: FloatArray | None


class Normalised(NamedTuple):
    """The normalised rows and their statistics, in extended precision."""

    xhat: ExtendedArray  # (n1, n2)
    mean: ExtendedArray  # (n1, 1)
    variance: ExtendedArray  # (n1, 1), RMS norm: the mean square
    invvar: ExtendedArray  # (n1, 1)


def layer_norm(
    x: ArrayLike,
    normalized_shape: NormalizedShape,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> NormResult:
    """Return y = (x - mean) / sqrt(variance + eps) · weight + bias over the trailing dimensions `normalized_shape`.

    >>> output, mean, invvar = layer_norm([[1, 2, 3], [4, 4, 4]], 3, eps=0.25)
    >>> output.round(3).tolist(), mean.tolist(), invvar.round(3).tolist()
    ([[-1.044, 0.0, 1.044], [0.0, 0.0, 0.0]], [2.0, 4.0], [1.044, 2.0])
    """
    rows = as_rows(x, normalized_shape, weight, bias, eps)
    with np.errstate(all="ignore"):
        middle = normalise(rows, centred=True)
        # y = x̂ γ + β
        output = middle.xhat * rows.weight + rows.bias
        return NormResult(
            narrow(output, rows.leading + rows.normalized),
            narrow(middle.mean, rows.leading),
            narrow(middle.invvar, rows.leading),
        )


def rms_norm(
    x: ArrayLike, normalized_shape: NormalizedShape, weight: ArrayLike | None = None, eps: float = 1e-5
) -> NormResult:
    """Return y = x / sqrt(mean(x²) + eps) · weight over the trailing dimensions `normalized_shape`.

    >>> rms_norm([3.0, 4.0], 2, eps=0.0).output.round(3).tolist()
    [0.849, 1.131]
    """
    rows = as_rows(x, normalized_shape, weight, None, eps)
    with np.errstate(all="ignore"):
        middle = normalise(rows, centred=False)
        output = middle.xhat * rows.weight
        return NormResult(narrow(output, rows.leading + rows.normalized), None, narrow(middle.invvar, rows.leading))


def layer_norm_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    normalized_shape: NormalizedShape,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> NormGradients:
    """Return the gradients of sum(grad_output · layer_norm(x)), exact for every weight, including zero.

    >>> layer_norm_backward([[0.0, 0.0, 1.0]], [[1.0, 2.0, 3.0]], 3, [1, 1, 1]).grad_weight.round(3).tolist()
    [0.0, 0.0, 1.225]
    """
    return backward(grad_output, as_rows(x, normalized_shape, weight, bias, eps), centred=True)


def rms_norm_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    normalized_shape: NormalizedShape,
    weight: ArrayLike | None = None,
    eps: float = 1e-5,
) -> NormGradients:
    """Return the gradients of sum(grad_output · rms_norm(x)); grad_bias is None."""
    return backward(grad_output, as_rows(x, normalized_shape, weight, None, eps), centred=False)


def normalise(rows: Rows, *, centred: bool) -> Normalised:
    """Return mean, variance and x̂ of every row. If `centred` is False, the mean is taken as 0, as in RMS norm."""
    mean = np.zeros_like(rows.x[:, :1])
    if centred:
        mean = row_mean(rows.x)
        # The first mean carries the rounding of a sum of x. The mean of the small deviations corrects it.
        mean = mean + np.where(np.isfinite(mean), row_mean(rows.x - mean), 0)
    deviation = rows.x - mean
    variance = row_mean(deviation * deviation)
    # r = 1 / √(σ² + ε)
    invvar = 1 / np.sqrt(variance + rows.eps)
    return Normalised(deviation * invvar, mean, variance, invvar)


def backward(
    grad_output: ArrayLike, rows: Rows, *, centred: bool, grad_residual: ArrayLike | None = None
) -> NormGradients:
    """Return layer norm's gradients, or RMS norm's if `centred` is False: without a mean, the mean's term is absent.

    grad_residual: added to grad_input; x's shape, or None.
    """
    dy = rows.matrix(grad_output, "grad_output")
    with np.errstate(all="ignore"):
        middle = normalise(rows, centred=centred)
        # g = ∂L/∂x̂ = ∂L/∂y γ
        g = dy * rows.weight
        # ∂L/∂x = (g - mean(g) - x̂ mean(g x̂)) r
        through_mean = row_mean(g) if centred else 0
        grad_input = (g - through_mean - middle.xhat * row_mean(g * middle.xhat)) * middle.invvar
        if grad_residual is not None:
            grad_input = grad_input + rows.matrix(grad_residual, "grad_residual")
        # ∂L/∂γ = Σ over rows of ∂L/∂y x̂,  ∂L/∂β = Σ over rows of ∂L/∂y
        grad_weight = narrow(column_sum(dy * middle.xhat), rows.normalized) if rows.has_weight else None
        grad_bias = narrow(column_sum(dy), rows.normalized) if rows.has_bias else None
        return NormGradients(narrow(grad_input, rows.leading + rows.normalized), grad_weight, grad_bias)


def row_mean(values: ExtendedArray) -> ExtendedArray:
    """Return the mean of every row: (n1, n2) to (n1, 1)."""
    return values.sum(axis=1, keepdims=True) / values.shape[1]


def column_sum(values: ExtendedArray) -> ExtendedArray:
    """Return the sum over rows: (n1, n2) to (n2,)."""
    # Transposed first, because NumPy adds in pairs only along contiguous memory.
    return np.ascontiguousarray(values.T).sum(axis=1)


def narrow(values: ExtendedArray, shape: tuple[int, ...]) -> FloatArray:
    """Round once to float64, and reshape."""
    return values.astype(np.float64).reshape(shape)
