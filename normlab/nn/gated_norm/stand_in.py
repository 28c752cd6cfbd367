"""The forward of norms that replace other libraries' gated RMS norms: dtypes, and a gate that may be missing."""

from typing import Any

import torch
from torch import Tensor

from normlab.nn import dtypes, functional
from normlab.nn.gated_norm.functional import gated_rms_norm
from normlab.nn.shapes import Parameter


def gated(norm: Any, x: Tensor, gate: Parameter = None) -> Tensor:
    """Return the output of a norm that has replaced another library's; without a gate, its RMSNorm of x.

    x and the gate may have different dtypes: then both are computed with in the wider one.
    """
    dtype = x.dtype
    if gate is not None and gate.dtype is not dtype:
        x = x.to(torch.promote_types(dtype, gate.dtype))

    def compute(x: Tensor, weight: Tensor) -> Tensor:
        if gate is None:
            return functional.rms_norm(x, x.shape[-1], weight, norm.eps)
        return gated_rms_norm(x, gate.to(x.dtype), weight, norm.eps, norm_before_gate=norm.norm_before_gate)

    return dtypes.by_formula(norm, x, dtype, compute)
