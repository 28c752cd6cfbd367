"""normlab for PyTorch, by apex.normalization's names and signatures and by torch.nn's.

torch.nn's names are `batch_norm`, `instance_norm`, `group_norm` and their modules (`normlab.nn.family`), and
`layer_norm`, `rms_norm`, `LayerNorm` and `RMSNorm`. `add_layer_norm` and `add_rms_norm` add a residual first
(`normlab.nn.add_norm`), `gated_rms_norm` has a gate (`normlab.nn.gated_norm`), and `modulated_layer_norm` a scale and a
shift per sample (`normlab.nn.modulated_norm`).

`memory_efficient` chooses the tensors that the backward keeps. False keeps the input. True keeps the output, which the
next layer mostly keeps anyway, and divides it by gamma with apex's clamp. "exact" also keeps the output, and beside it
the normalised values of the few columns that cannot be recomputed from the output; its gradients are right for every
gamma. This package needs PyTorch; `import normlab` does not.

>>> import torch
>>> norm = FusedLayerNorm(4, memory_efficient="exact")
>>> norm(torch.tensor([[1.0, 2.0, 3.0, 6.0]]))
tensor([[-1.0690, -0.5345,  0.0000,  1.6036]], grad_fn=<NormBackward>)
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:  # any other ImportError is of a PyTorch that is there and does not load
    raise ImportError("normlab.nn needs PyTorch, which is not installed: pip install 'normlab[torch]'") from error

from normlab.nn.add_norm.functional import add_layer_norm, add_rms_norm, head_rms_norm
from normlab.nn.add_norm.modules import AddLayerNorm, AddRMSNorm, HeadRMSNorm
from normlab.nn.dtypes import apex_autocast
from normlab.nn.engines import engine
from normlab.nn.exact import recount
from normlab.nn.family.functional import batch_norm, group_norm, instance_norm
from normlab.nn.family.modules import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from normlab.nn.functional import (
    fused_layer_norm,
    fused_layer_norm_affine,
    fused_rms_norm,
    fused_rms_norm_affine,
    layer_norm,
    mixed_dtype_fused_layer_norm_affine,
    mixed_dtype_fused_rms_norm_affine,
    rms_norm,
)
from normlab.nn.gated_norm.functional import gated_rms_norm
from normlab.nn.gated_norm.modules import GatedRMSNorm
from normlab.nn.modulated_norm.functional import modulated_layer_norm
from normlab.nn.modulated_norm.modules import ModulatedLayerNorm
from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm
from normlab.nn.replace import replace_norms
from normlab.nn.traced import fused_by_compiler

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "FusedLayerNorm",
    "FusedRMSNorm",
    "GatedRMSNorm",
    "GroupNorm",
    "HeadRMSNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "ModulatedLayerNorm",
    "RMSNorm",
    "add_layer_norm",
    "add_rms_norm",
    "apex_autocast",
    "batch_norm",
    "engine",
    "fused_by_compiler",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
    "gated_rms_norm",
    "group_norm",
    "head_rms_norm",
    "instance_norm",
    "layer_norm",
    "mixed_dtype_fused_layer_norm_affine",
    "mixed_dtype_fused_rms_norm_affine",
    "modulated_layer_norm",
    "recount",
    "replace_norms",
    "rms_norm",
]
