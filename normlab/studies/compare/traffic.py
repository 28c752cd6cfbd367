"""Prepare a norm's traffic for the kernels: some rows of a `Source`, in one dtype, with missing arrays filled in.

`normlab.studies.compare.plan` says how many rows; `normlab.studies.compare.passes` runs the kernels on it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from normlab.host.arrays import FLOATS
from normlab.studies.compare.activations import InputError, Source

SEED = 160706450  # not 0: an input that a user drew with seed 0 would come back as the gradient
DEFAULT_EPS = 1e-5


@dataclass(frozen=True)
class Layer:
    """One norm's traffic, checked, in the dtype that is compared: the first `rows` of `rows_total`."""

    name: str
    input: np.ndarray  # (rows, n2)
    grad_output: np.ndarray  # (rows, n2)
    weight: np.ndarray  # (n2,)
    bias: np.ndarray | None  # (n2,); None for RMSNorm
    eps: float
    rows_total: int
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[np.ndarray, ...]:
        """Return the weight, and for LayerNorm the bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def layer_of(source: Source, norm: str, dtype: str, rows: int) -> Layer:
    """Return the first `rows` of a source (or as many as it has) for "layer" or "rms" norm, rounded to a dtype.

    Raises:
        InputError: NaN or infinity in the data, or values too large for the dtype.
    """
    total, n2 = source.shape
    arrays, notes = dict(source.arrays), list(source.notes)
    rows = min(rows, total)
    for key in ("input", "grad_output"):
        if key in arrays:
            arrays[key] = arrays[key].reshape(total, n2)[:rows]
    missing = _filled_in(rows, n2)
    if norm == "rms":
        del missing["bias"]
        if arrays.pop("bias", None) is not None:
            notes.append("bias: not used, RMSNorm has none")
    for key, (fill, said) in missing.items():
        if key not in arrays:
            arrays[key] = fill()
            notes.append(f"{key}: {said}")
    eps = float(np.reshape(arrays.pop("eps"), -1)[0])
    if arrays["input"].dtype != FLOATS[dtype]:
        done = "widened" if np.can_cast(arrays["input"].dtype, FLOATS[dtype]) else "rounded"
        notes.append(f"input: {arrays['input'].dtype}, {done} to {dtype} (--dtype)")
    rounded = {key: _rounded(key, array, dtype) for key, array in arrays.items()}
    return Layer(source.name, bias=rounded.pop("bias", None), eps=eps, rows_total=total, notes=tuple(notes), **rounded)


def _filled_in(rows: int, n2: int) -> dict[str, tuple[Callable[[], Any], str]]:
    """Return what stands for an array that is not given, and the note that says so."""
    return {
        "weight": (lambda: np.ones(n2), "none given, 1 taken"),
        "bias": (lambda: np.zeros(n2), "none given, 0 taken"),
        "grad_output": (
            lambda: np.random.default_rng(SEED).standard_normal((rows, n2)),
            f"none given, drawn at random (standard normal, seed {SEED})",
        ),
        "eps": (lambda: DEFAULT_EPS, f"none given, {DEFAULT_EPS:g} taken"),
    }


def _rounded(key: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """Return a contiguous copy in a dtype; neither NaN nor infinity, against which no error can be measured."""
    odd = ~np.isfinite(array)
    if odd.any():
        first = tuple(int(i) for i in np.argwhere(odd)[0])
        raise InputError(f"{key} has {odd.sum():,} NaN or infinite values, the first at {first}; compare needs numbers")
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array).astype(FLOATS[dtype])
    lost = int((~np.isfinite(rounded.astype(np.float64))).sum())
    if lost:
        raise InputError(f"{key} has {lost:,} values too large for {dtype}; choose a wider --dtype")
    return rounded
