"""Which columns a saved output does not give back: those that the exact mode keeps x̂ of.

From an output stored with unit roundoff u, x̂ comes back with an error of u (|β| + |γ x̂|) / |γ|
(`normlab.oracle.recompute_error`). While |β| is no more than RATIO |γ| that is u (RATIO + |x̂|) at most: the output's
own rounding, a few times. A column is at risk where it is more, where the clamp would change γ (|γ| < eps), and where
γ x̂ would be stored with fewer digits (|γ| below the smallest normal number of the output's dtype).
"""

from typing import Any

from normlab.engine import cuda

RATIO = 8
SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def smallest_weight(eps: Any, output_dtype: str) -> Any:
    """The smallest |gamma| that recomputing takes, as a NumPy scalar of eps's dtype, the accumulator's."""
    return max(eps, eps.dtype.type(SMALLEST_NORMAL[output_dtype]))


@cuda.jit(device=True)
def at_risk(gamma, beta, smallest, ratio):
    """Whether recomputing x̂ loses too much. gamma may be None (1), beta too (0); if one is NaN, the other decides."""
    if gamma is None:
        return beta is not None and abs(beta) > ratio
    if abs(gamma) < smallest:
        return True
    return beta is not None and abs(beta) > ratio * abs(gamma)
