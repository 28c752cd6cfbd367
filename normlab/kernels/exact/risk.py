"""Which columns a saved output does not give back: those that the exact mode keeps x̂ of.

From an output stored with unit roundoff u, x̂ comes back with an error of u (|β| + |γ x̂|) / |γ|
(`normlab.oracle.recompute_error`). While |β| is no more than RATIO |γ| that is u (RATIO + |x̂|) at most: the output's own
rounding, a few times. A column is at risk where it is more, where the clamp would change γ (|γ| < eps), and where γ x̂
would be stored with fewer digits (|γ| below the smallest normal number of the output's dtype).
"""

from normlab.engine import cuda

RATIO = 8


@cuda.jit(device=True)
def at_risk(gamma, beta, smallest):
    """Whether recomputing x̂ loses too much. gamma may be None (1), beta too (0); smallest: max(eps, smallest normal).

    NaN parameters are at no risk: nothing could be saved.
    """
    if gamma is None:
        return beta is not None and abs(beta) > RATIO
    if abs(gamma) < smallest:
        return True
    return beta is not None and abs(beta) > RATIO * abs(gamma)
