"""Compute the norms and the matrix product in NumPy float64, and bound the error of a correctly rounding kernel.

The oracle imports no other part of normlab. `values` computes the true results. `forward_bounds` and `backward_bounds`
bound the error of a kernel with a given `Arithmetic`. `add_norm` does both for norms of a sum, and `gated_norm` for
norms with a gate, `modulated_norm` for those modulated per sample. `check` compares a kernel's result with the truth.

>>> import numpy as np
>>> x = np.float32([[1, 2, 4]])
>>> naive = (x - x.mean()) / np.sqrt(x.var() + np.float32(1e-5))
>>> arithmetic = Arithmetic(row_terms=3, row_merges=0, column_terms=1, column_merges=0, statistics="two_pass")
>>> bound = layer_norm_bound(x, 3, None, None, 1e-5, arithmetic).output
>>> 0 < assert_within(naive, layer_norm(x, 3).output, bound, "output") < 1
True
"""

from normlab.oracle.add_norm import (
    AddNormResult,
    add_layer_norm,
    add_layer_norm_backward,
    add_layer_norm_backward_bound,
    add_layer_norm_bound,
    add_rms_norm,
    add_rms_norm_backward,
    add_rms_norm_backward_bound,
    add_rms_norm_bound,
)
from normlab.oracle.arithmetic import Arithmetic
from normlab.oracle.backward_bounds import layer_norm_backward_bound, rms_norm_backward_bound
from normlab.oracle.check import assert_within, ratio
from normlab.oracle.floats import unit_roundoff
from normlab.oracle.forward_bounds import layer_norm_bound, rms_norm_bound
from normlab.oracle.gated_norm import (
    GatedGradients,
    GatedResult,
    gated_rms_norm,
    gated_rms_norm_backward,
    gated_rms_norm_backward_bound,
    gated_rms_norm_bound,
)
from normlab.oracle.merging import MergedMoments, merged_moments, merged_moments_bound
from normlab.oracle.modulated_norm import (
    ModulatedGradients,
    modulated_layer_norm,
    modulated_layer_norm_backward,
    modulated_layer_norm_backward_bound,
    modulated_layer_norm_bound,
)
from normlab.oracle.product import product, product_bound
from normlab.oracle.recompute import recompute_error
from normlab.oracle.values import (
    NormGradients,
    NormResult,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)

__all__ = [
    "AddNormResult",
    "Arithmetic",
    "GatedGradients",
    "GatedResult",
    "MergedMoments",
    "ModulatedGradients",
    "NormGradients",
    "NormResult",
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_layer_norm_backward_bound",
    "add_layer_norm_bound",
    "add_rms_norm",
    "add_rms_norm_backward",
    "add_rms_norm_backward_bound",
    "add_rms_norm_bound",
    "assert_within",
    "gated_rms_norm",
    "gated_rms_norm_backward",
    "gated_rms_norm_backward_bound",
    "gated_rms_norm_bound",
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_backward_bound",
    "layer_norm_bound",
    "merged_moments",
    "merged_moments_bound",
    "modulated_layer_norm",
    "modulated_layer_norm_backward",
    "modulated_layer_norm_backward_bound",
    "modulated_layer_norm_bound",
    "product",
    "product_bound",
    "ratio",
    "recompute_error",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_backward_bound",
    "rms_norm_bound",
    "unit_roundoff",
]
