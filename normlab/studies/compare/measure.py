"""Measure how far a kernel's array is from the truth: relative to it, at most, and relative to the bound.

Called by `normlab.studies.compare.passes` on every result.
"""

from dataclasses import dataclass

import numpy as np

from normlab import oracle


@dataclass(frozen=True)
class Error:
    """How far one array is from the truth.

    Attributes:
        relative: norm of the error over norm of the truth, both over the whole array. Infinite if the truth is 0
            everywhere and the result is not.
        largest: largest |kernel - truth|.
        bound_ratio: largest |kernel - truth| / bound; above 1 the kernel, or the bound, is wrong.
        not_finite: how many values are NaN or infinite where the truth is a number.
        unbounded: how many values have an infinite bound, where nothing can be said in advance.
        size: how many values there are.
    """

    relative: float
    largest: float
    bound_ratio: float
    not_finite: int
    unbounded: int
    size: int


def measure(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> Error:
    """Return the `Error` of a kernel's result where the truth is a number; its bound_ratio covers all elements.

    >>> measure(np.float32([3.0, 4.5]), np.array([3.0, 4.0]), np.array([1.0, 1.0]))
    Error(relative=0.1, largest=0.5, bound_ratio=0.5, not_finite=0, unbounded=0, size=2)
    """
    known = np.isfinite(want)
    held, right = got.astype(np.float64)[known], want[known]
    with np.errstate(all="ignore"):
        off = np.abs(held - right)
        scale = np.abs(right).max(initial=0.0) or 1.0  # so that no square overflows
        norm, of = float(np.linalg.norm(off / scale)), float(np.linalg.norm(right / scale))
    relative = norm / of if of else (np.inf if norm > 0 else norm)  # a norm that is not above 0 is 0 or NaN
    return Error(
        relative=relative,
        largest=float(off.max(initial=0.0)),
        bound_ratio=oracle.ratio(got, want, bound),
        not_finite=int((~np.isfinite(held)).sum()),
        unbounded=int(np.isinf(bound).sum()),
        size=want.size,
    )
