"""Norms of DTensors, and ShardedNorm: the style by which parallelize_module makes a module's norm a sharded one.

Importing this file imports torch.distributed.tensor, which takes up to a second.
"""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from normlab import nn
from normlab.distributed import rows
from normlab.nn.dtypes import Rule
from normlab.nn.formulas import accumulator
from normlab.nn.functional import Options
from normlab.nn.functional import norm as local_norm
from normlab.nn.shapes import MemoryEfficient, Parameter


class ShardedNorm(ParallelStyle):
    """Normalise over a hidden dimension that stays sharded: Shard(-1) in and out, parameters Shard(0).

    For torch.nn.LayerNorm, torch.nn.RMSNorm and normlab.nn's modules over one dimension. The module takes a DTensor, or
    this rank's columns as a tensor, as ColwiseParallel leaves them. A DTensor that is sharded over its rows (sequence
    parallelism) is normalised without a collective.

    Args:
        use_local_output: return this rank's columns as a tensor, for RowwiseParallel; False: a DTensor.

    Raises:
        NotImplementedError: when applied to another module.
    """

    def __init__(self, *, use_local_output: bool = False):
        super().__init__()
        self.use_local_output = use_local_output

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        """Shard the module's parameters, and give the module another forward."""
        if not isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)) or len(module.normalized_shape) != 1:
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
                input = _whole(
                    input, device_mesh, [Shard(input.dim() - 1)], (*input.shape[:-1], *self.normalized_shape)
                )
            output = _of_module(self, input)
            return output.to_local() if use_local_output else output

        module.forward = MethodType(forward, module)  # type: ignore[method-assign]
        return module

    def __repr__(self) -> str:
        """Return the style with its options."""
        return f"ShardedNorm(use_local_output={self.use_local_output})"


def _of_module(module: Any, x: DTensor) -> DTensor:
    """Return the norm that a module stands for, of a DTensor."""
    rms = isinstance(module, torch.nn.RMSNorm)
    eps = torch.finfo(accumulator(x.dtype)).eps if module.eps is None else module.eps
    function = rows.sharded_rms_norm if rms else rows.sharded_layer_norm
    mode: MemoryEfficient = getattr(module, "memory_efficient", False)
    rule: Rule = getattr(module, "dtype_rule", "torch")
    return norm(function, x, module.weight, getattr(module, "bias", None), None, eps, rms, mode, rule)


def norm(
    function: Callable[..., Tensor],
    x: Any,
    weight: Parameter,
    bias: Parameter,
    group: Any,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    rule: Rule,
) -> DTensor:
    """Return the norm of a DTensor with the same placements. Arguments are those of `rows.norm`.

    Raises:
        ValueError: there is a group, x is a partial sum, or more than one mesh dimension shards the last dimension.
    """
    mesh, placements, last = x.device_mesh, x.placements, x.dim() - 1
    over = [number for number, placement in enumerate(placements) if placement.is_shard(last)]
    if group is not None:
        raise ValueError(f"{function.__name__}(): a DTensor has its own mesh, so group must be None")
    if any(placement.is_partial() for placement in placements) or len(over) > 1:
        raise ValueError(
            f"{function.__name__}(): x has placements {placements}, but only one mesh dimension may shard its last "
            "dimension, and none may hold partial sums: redistribute x first"
        )
    local = x.to_local(grad_placements=placements)
    gamma, beta = (_local_parameter(one, mesh, placements, over) for one in (weight, bias))
    if over:
        found = rows.norm(function, local, gamma, beta, mesh.get_group(over[0]), eps, rms, memory_efficient, rule)
    else:
        options = Options(memory_efficient, rms, rule)
        found = local_norm(nn.rms_norm if rms else nn.layer_norm, local, x.shape[-1:], gamma, beta, eps, options)
    return _whole(found, mesh, placements, tuple(x.shape))


def _local_parameter(
    parameter: Parameter, mesh: DeviceMesh, placements: Sequence[Placement], over: list[int]
) -> Parameter:
    """Return this rank's part of weight or bias.

    Its gradient is a partial sum over the mesh dimensions that shard x's rows: each rank sees only its own rows.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    if parameter.device_mesh != mesh:  # such as the one dimension of a larger mesh that tensor parallelism uses
        return parameter.to_local()
    wanted = [Shard(0) if number in over else Replicate() for number in range(mesh.ndim)]
    summed = [
        placement if number in over else Partial() if placements[number].is_shard() else Replicate()
        for number, placement in enumerate(wanted)
    ]
    return parameter.redistribute(mesh, wanted).to_local(grad_placements=summed)


def _whole(local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: tuple[int, ...]) -> DTensor:
    """Return the DTensor of this shape whose part on this rank is a tensor."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
