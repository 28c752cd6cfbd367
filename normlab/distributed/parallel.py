"""`ShardedNorm`, a style of torch.distributed.tensor.parallel: a module's hidden dimension stays sharded.

Importing this file imports torch.distributed.tensor, which takes up to a second.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from normlab.distributed.functional import sharded_layer_norm, sharded_rms_norm
from normlab.distributed.tensors import dtensor_of, norm
from normlab.nn.add_norm.modules import AddLayerNorm, AddRMSNorm
from normlab.nn.dtypes import Rule
from normlab.nn.formulas import accumulator
from normlab.nn.gated_norm.modules import GatedRMSNorm
from normlab.nn.shapes import MemoryEfficient


class ShardedNorm(ParallelStyle):
    """Normalise over a hidden dimension that stays sharded: Shard(-1) in and out, parameters Shard(0).

    For torch.nn.LayerNorm, torch.nn.RMSNorm and normlab.nn's modules of one input over one dimension, without an
    offset. The module takes a DTensor, or this rank's columns as a tensor, as ColwiseParallel leaves them. A DTensor
    that is sharded over its rows (sequence parallelism) is normalised without a collective.

    Args:
        use_local_output: True returns this rank's columns as a tensor, for RowwiseParallel; False returns a DTensor.

    Raises:
        NotImplementedError: the style is applied to another module.
        ValueError: the mesh has several dimensions.
    """

    def __init__(self, *, use_local_output: bool = False):
        super().__init__()
        self.use_local_output = use_local_output

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        """Shard the module's parameters, and replace its forward by the sharded norm."""
        # the new forward takes one input, and `_norm_of` has no offset
        other = isinstance(module, (AddLayerNorm, AddRMSNorm, GatedRMSNorm)) or getattr(module, "offset", 0.0) != 0
        plain = isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)) and len(module.normalized_shape) == 1
        if other or not plain:
            raise NotImplementedError(
                f"ShardedNorm is for LayerNorm and RMSNorm over one dimension, not for {type(module).__name__}"
                f"({module.extra_repr()})"
            )
        if device_mesh.ndim != 1:
            raise ValueError(f"ShardedNorm needs a mesh of one dimension, such as mesh['tp'], got {device_mesh}")
        for name, parameter in list(module.named_parameters(recurse=False)):
            sharded = distribute_tensor(parameter, device_mesh, [Shard(0)])
            module.register_parameter(name, torch.nn.Parameter(sharded, parameter.requires_grad))
        use_local_output = self.use_local_output

        def forward(self: Any, input: Tensor) -> Tensor:
            """Return the norm of a DTensor, or of this rank's columns."""
            if not isinstance(input, DTensor):
                shape = *input.shape[:-1], *self.normalized_shape
                input = dtensor_of(input, device_mesh, [Shard(input.dim() - 1)], shape)
            output = _norm_of(self, input)
            return output.to_local() if use_local_output else output

        module.forward = MethodType(forward, module)
        return module

    def __repr__(self) -> str:
        """Return the style with its options."""
        return f"ShardedNorm(use_local_output={self.use_local_output})"


def _norm_of(module: Any, x: DTensor) -> DTensor:
    """Return the LayerNorm or RMSNorm of a DTensor with the module's parameters, eps, mode and dtype rule."""
    rms = isinstance(module, torch.nn.RMSNorm)
    eps = torch.finfo(accumulator(x.dtype)).eps if module.eps is None else module.eps
    function = sharded_rms_norm if rms else sharded_layer_norm
    mode: MemoryEfficient = getattr(module, "memory_efficient", False)
    rule: Rule = getattr(module, "dtype_rule", "torch")
    return norm(function, x, module.weight, getattr(module, "bias", None), None, eps, rms, mode, rule)
