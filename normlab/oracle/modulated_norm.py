"""Compute LayerNorms modulated per sample, forward and backward, and bound a kernel's error.

Each sample is a LayerNorm of its own, with gamma = 1 + scale, rounded to the accumulator's format, and beta = shift. So
values and bounds are those of `values`, `forward_bounds` and `backward_bounds`, sample by sample.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlab.oracle.add_norm import gamma
from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.backward_bounds import Saved, backward_bound
from normlab.oracle.floats import FloatArray
from normlab.oracle.forward_bounds import forward_bound
from normlab.oracle.rows import Rows, as_rows
from normlab.oracle.values import NormResult, backward, layer_norm


class ModulatedGradients(NamedTuple):
    """A backward's results, or bounds on them: `grad_input` in x's shape, the others (samples, n)."""

    grad_input: FloatArray
    grad_scale: FloatArray
    grad_shift: FloatArray


def modulated_layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, eps: float) -> NormResult:
    """Return x̂ (1 + scale) + shift. x: (samples, ..., n); scale, shift: (samples, n).

    >>> modulated_layer_norm(np.array([[[1.0, 3.0]]]), np.ones((1, 2)), np.zeros((1, 2)), 0.0).output.tolist()
    [[[-2.0, 2.0]]]
    """
    samples, n = zip(x, scale, shift, strict=True), x.shape[-1]
    results = (layer_norm(one, n, gamma(own_scale, 1.0), own_shift, eps) for one, own_scale, own_shift in samples)
    return NormResult(*_stacked(results))


def modulated_layer_norm_bound(
    x: np.ndarray, scale: np.ndarray, shift: np.ndarray, eps: float, arithmetic: Arithmetic
) -> NormResult:
    """Return elementwise absolute bounds on |kernel - modulated_layer_norm(x, …)|, shaped like its result."""
    samples = _samples(x, scale, shift, eps)
    return NormResult(*_stacked(forward_bound(rows, arithmetic, centred=True) for rows in samples))


def modulated_layer_norm_backward(
    grad_output: ArrayLike, x: np.ndarray, scale: np.ndarray, shift: np.ndarray, eps: float
) -> ModulatedGradients:
    """Return the gradients of sum(grad_output · modulated_layer_norm(x, scale, shift))."""
    samples = zip(np.asarray(grad_output), _samples(x, scale, shift, eps), strict=True)
    return ModulatedGradients(*_stacked(backward(dy, rows, centred=True) for dy, rows in samples))


def modulated_layer_norm_backward_bound(
    grad_output: ArrayLike,
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    eps: float,
    arithmetic: Arithmetic,
    *,
    errors: NormResult | None = None,
) -> ModulatedGradients:
    """Return elementwise absolute bounds on the errors of a kernel's gradients.

    arithmetic: the kernel's; its column sums add up the rows of one sample. errors: bounds on the errors of the
    forward's results, from which the backward takes the statistics; None for exact statistics that are rounded.
    """
    found = []
    for sample, (dy, rows) in enumerate(zip(np.asarray(grad_output), _samples(x, scale, shift, eps), strict=True)):
        saved = Saved(memory_efficient=False)
        if errors is not None and errors.mean is not None:
            saved = Saved(False, errors.mean[sample], errors.invvar[sample])
        found.append(backward_bound(dy, rows, arithmetic, saved, centred=True))
    return ModulatedGradients(*_stacked(found))


def _stacked(results: Iterable[tuple]) -> Iterator[np.ndarray]:
    """Yield each field of the samples' results for all samples, which become its first dimension."""
    return (np.stack(field) for field in zip(*results, strict=True))


def _samples(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, eps: float) -> Iterator[Rows]:
    """Yield each sample as the rows of a LayerNorm with gamma = 1 + scale and beta = shift."""
    for sample, sample_scale, sample_shift in zip(x, scale, shift, strict=True):
        yield as_rows(sample, x.shape[-1], gamma(sample_scale, 1.0), sample_shift, eps)
