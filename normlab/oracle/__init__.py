"""NumPy float64 truth of the norms, and how far from it a correctly rounding kernel may be.

Imports nothing of the house. `values` is the truth, `forward_bounds` and `backward_bounds` say how far off a kernel with a
given `Arithmetic` may be, `check` compares.
"""

from normlab.oracle.values import (
    NormGradients,
    NormResult,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
