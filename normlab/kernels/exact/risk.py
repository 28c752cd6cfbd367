"""Say which columns a saved output does not give back: the exact mode keeps their x̂.

From an output stored with unit roundoff u, x̂ comes back with an error of u (|β| + |γ x̂|) / |γ|
(`normlab.oracle.recompute_error`). A column is at risk in three cases:

- |β| > RATIO |γ| s, where s is the spread of x̂ (`spread`);
- |γ| < eps;
- |γ| s below the smallest normal number of the output's dtype.
"""

from typing import Any, NamedTuple

import numpy as np

from normlab.engine import cuda

RATIO = 8  # x̂ then comes back within nine roundings of the output
SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


class Limits(NamedTuple):
    """What parameters are compared with, three NumPy scalars in accumulator precision: an int would make float64.

    smallest: |γ| below it is clamped; the larger of eps and 0. normal: the output dtype's smallest normal number.
    ratio: RATIO.
    """

    smallest: Any
    normal: Any
    ratio: Any


def limits(eps: Any, output_dtype: str) -> Limits:
    """Return the limits of a norm. eps: a NumPy scalar in accumulator precision. output_dtype: a name."""
    own = eps.dtype.type
    return Limits(np.maximum(eps, own(0)), own(SMALLEST_NORMAL[output_dtype]), own(RATIO))


@cuda.jit(device=True)
def at_risk(gamma, beta, spread, limits):
    """Return True if recomputing x̂ loses too much. spread: a scalar. limits: `Limits`.

    gamma and beta may be None, which count as 1 and 0, and a gamma of None is not clamped. A NaN puts no column at
    risk: its gradients are NaN in either case.
    """
    if gamma is None:
        return beta is not None and abs(beta) > limits.ratio * spread  # |gamma| = 1
    size = abs(gamma)
    # The clamp would change γ, or γ x̂ would be stored as a subnormal number, with fewer digits.
    if size < limits.smallest or size * spread < limits.normal:
        return True
    # Any other column loses a few of the output's roundings alone.
    return beta is not None and abs(beta) > limits.ratio * (size * spread)
