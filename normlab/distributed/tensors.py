"""Compute the norm of a DTensor: over its local columns and those of other ranks, or of its local rows alone.

Importing this file imports torch.distributed.tensor, which takes up to a second.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from normlab import nn
from normlab.distributed import rows
from normlab.nn.dtypes import Rule
from normlab.nn.functional import Options
from normlab.nn.functional import norm as local_norm
from normlab.nn.shapes import MemoryEfficient, Parameter


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
    return dtensor_of(found, mesh, placements, tuple(x.shape))


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


def dtensor_of(local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: tuple[int, ...]) -> DTensor:
    """Return the DTensor of this shape whose part on this rank is `local`."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
