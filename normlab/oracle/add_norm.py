"""Compute norms of x + residual, forward and backward, and bound a kernel's error.

The sum is a result of its own, which the next layers see. It is therefore defined as what a kernel stores: x + residual
in the accumulator's format, rounded to the residual's. A kernel must have every bit of it. The rest is the norm of this
array, so values and bounds of the forward are those of `values` and `forward_bounds`. In the same way gamma is defined
as weight + offset, rounded to the accumulator's format.

The backward's gradient, which is that of x and that of the residual, is the norm's grad_input plus the gradient at the
sum. The kernel adds in the accumulator's format and rounds once to storage. So the bound has one rounding more than the
plain norm's (`backward_bounds`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.backward_bounds import Saved, backward_bound
from normlab.oracle.floats import FloatArray
from normlab.oracle.forward_bounds import forward_bound
from normlab.oracle.rows import Rows, as_rows
from normlab.oracle.values import NormGradients, NormResult, backward, layer_norm, rms_norm


class AddNormResult(NamedTuple):
    """A forward's results: `new_residual` in the residual's dtype, the others as in `NormResult`."""

    output: FloatArray
    new_residual: np.ndarray
    mean: FloatArray | None
    invvar: FloatArray


def add_layer_norm(
    x: np.ndarray, residual: np.ndarray, weight: ArrayLike | None, bias: ArrayLike | None, eps: float
) -> AddNormResult:
    """Return the layer norm of x + residual over the last dimension.

    x, residual: arrays of the kernel's dtypes, of one shape. weight, bias: (n,), or None.

    >>> added = add_layer_norm(np.float16([[1.0, 2.0]]), np.float16([[0.0, 2.0**-12]]), None, None, 0.0)
    >>> added.output.tolist(), added.new_residual.tolist()
    ([[-1.0, 1.0]], [[1.0, 2.0]])
    """
    new_residual = rounded_sum(x, residual)
    output, mean, invvar = layer_norm(new_residual, new_residual.shape[-1], weight, bias, eps)
    return AddNormResult(output, new_residual, mean, invvar)


def add_rms_norm(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray | None, eps: float, offset: float = 0.0
) -> AddNormResult:
    """Return the RMS norm of x + residual over the last dimension, with gamma = weight + offset."""
    new_residual = rounded_sum(x, residual)
    output, mean, invvar = rms_norm(new_residual, new_residual.shape[-1], gamma(weight, offset), eps)
    return AddNormResult(output, new_residual, mean, invvar)


def add_layer_norm_bound(
    new_residual: np.ndarray, weight: ArrayLike | None, bias: ArrayLike | None, eps: float, arithmetic: Arithmetic
) -> NormResult:
    """Return bounds on output, mean and invvar of `add_layer_norm`; that of new_residual is 0."""
    return forward_bound(_rows(new_residual, weight, bias, eps), arithmetic, centred=True)


def add_rms_norm_bound(
    new_residual: np.ndarray, weight: np.ndarray | None, eps: float, arithmetic: Arithmetic, offset: float = 0.0
) -> NormResult:
    """Return bounds on output and invvar of `add_rms_norm`; that of new_residual is 0."""
    return forward_bound(_rows(new_residual, gamma(weight, offset), None, eps), arithmetic, centred=False)


def add_layer_norm_backward(
    grad_output: ArrayLike,
    grad_residual: ArrayLike | None,
    new_residual: np.ndarray,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
) -> NormGradients:
    """Return the gradients of sum(grad_output · output + grad_residual · new_residual); grad_residual: None for zeros.

    grad_input is the gradient at x and at the residual.
    """
    rows = _rows(new_residual, weight, bias, eps)
    return backward(grad_output, rows, centred=True, grad_residual=grad_residual)


def add_rms_norm_backward(
    grad_output: ArrayLike,
    grad_residual: ArrayLike | None,
    new_residual: np.ndarray,
    weight: np.ndarray | None,
    eps: float,
    offset: float = 0.0,
) -> NormGradients:
    """Return the gradients as `add_layer_norm_backward`; grad_bias is None."""
    rows = _rows(new_residual, gamma(weight, offset), None, eps)
    return backward(grad_output, rows, centred=False, grad_residual=grad_residual)


def add_layer_norm_backward_bound(
    grad_output: ArrayLike,
    grad_residual: ArrayLike | None,
    new_residual: np.ndarray,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    eps: float,
    arithmetic: Arithmetic,
    *,
    memory_efficient: bool = False,
    errors: NormResult | None = None,
) -> NormGradients:
    """Return bounds on the kernel's gradients. arithmetic.input: the residual's format, which grad_input has.

    errors: bounds on the saved results of the forward, `add_layer_norm_bound`; None: exact, but rounded to storage.
    """
    rows, saved = _rows(new_residual, weight, bias, eps), _saved(memory_efficient, errors)
    return backward_bound(grad_output, rows, arithmetic, saved, centred=True, grad_residual=grad_residual)


def add_rms_norm_backward_bound(
    grad_output: ArrayLike,
    grad_residual: ArrayLike | None,
    new_residual: np.ndarray,
    weight: np.ndarray | None,
    eps: float,
    arithmetic: Arithmetic,
    *,
    offset: float = 0.0,
    memory_efficient: bool = False,
    errors: NormResult | None = None,
) -> NormGradients:
    """Return bounds on the kernel's gradients, as `add_layer_norm_backward_bound`."""
    rows, saved = _rows(new_residual, gamma(weight, offset), None, eps), _saved(memory_efficient, errors)
    return backward_bound(grad_output, rows, arithmetic, saved, centred=False, grad_residual=grad_residual)


def rounded_sum(x: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Return x + residual in the accumulator's format, then in the residual's dtype.

    >>> rounded_sum(np.float32([1]), np.float16([2.0**-11]))
    array([1.], dtype=float16)
    """
    wide = np.float64 if residual.dtype == np.float64 else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        return (x.astype(wide) + residual.astype(wide)).astype(residual.dtype)


def gamma(weight: np.ndarray | None, offset: float) -> np.ndarray | None:
    """Return weight + offset in the accumulator's format; None for None, because an absent weight counts as 1."""
    if weight is None or not offset:
        return weight
    wide = np.dtype(np.float64 if weight.dtype == np.float64 else np.float32)
    return np.add(weight.astype(wide), wide.type(offset), dtype=wide)


def _rows(new_residual: np.ndarray, weight: ArrayLike | None, bias: ArrayLike | None, eps: float) -> Rows:
    return as_rows(new_residual, new_residual.shape[-1], weight, bias, eps)


def _saved(memory_efficient: bool, errors: NormResult | None) -> Saved:
    if errors is None:
        return Saved(memory_efficient)
    return Saved(memory_efficient, errors.mean, errors.invvar, errors.output if memory_efficient else None)
