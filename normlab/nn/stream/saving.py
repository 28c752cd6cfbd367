"""Which tensor the backward of a norm in the residual stream keeps, decided in the forward.

"exact" keeps the output, as True does, if no column is at risk (`normlab.nn.exact`), and otherwise the normalised
tensor, as False does. The columns at risk are those of gamma. With an offset gamma is not the weight, so it gets memory
of its own, which stays the same: the exact mode's counts know parameters by their memory and version.
"""

from typing import Any

import torch
from torch import Tensor

from normlab.nn import engines, exact
from normlab.nn.add_norm.how import AddHow
from normlab.nn.formulas import accumulator
from normlab.nn.private import version_of
from normlab.nn.shapes import MemoryEfficient, Owners, Parameter


def keeps_output(
    mode: MemoryEfficient, invvar: Tensor, output: Tensor, parameters: Owners, owners: Owners, how: AddHow
) -> bool:
    """Return True if the backward is to keep the output.

    parameters: those of the forward. owners: those of the module, which the forward's may be casts of.
    """
    if mode != "exact":
        return mode
    if output.is_cuda and torch.cuda.is_current_stream_capturing():  # a graph cannot wait for the count
        return False
    weight, bias = parameters
    if weight is not None and how.offset:
        weight = gamma_of(owners[0], how.offset)
        owners = weight, owners[1]
    shape = tuple(output.shape[-1:])
    found = engines.chosen(output).columns_at_risk(invvar, output, shape, weight, bias, how.eps, owners)
    return not found.shape[0]


@torch.no_grad()
def gamma_of(weight: Any, offset: float) -> Tensor:
    """Return weight + offset in accumulator precision, in the same memory in each call, with a version that tells.

    It is computed again after each change of the weight and after each optimizer step.
    """
    wide = accumulator(weight.dtype)
    if weight.is_inference():
        return weight.to(wide) + offset
    storage = weight.untyped_storage()
    if not hasattr(storage, "normlab_gamma"):
        storage.normlab_gamma = {}
    key, now = (weight.storage_offset(), weight.shape, weight.dtype, offset), (exact.steps(), version_of(weight))
    gamma, seen = storage.normlab_gamma.get(key, (None, None))
    if seen != now:
        gamma = torch.empty_like(weight, dtype=wide) if gamma is None else gamma
        gamma.copy_(weight.detach()).add_(offset)
        storage.normlab_gamma[key] = gamma, now
    return gamma


def saved(
    keeps: bool, x: Tensor, residual: Parameter, results: tuple[Tensor, Any, Any, Tensor]
) -> tuple[Tensor, Tensor, Parameter]:
    """Return the tensor that the backward keeps, invvar, and the mean if it needs one."""
    output, new_residual, mean, invvar = results
    if keeps:
        return output, invvar, None
    return x if residual is None else new_residual, invvar, mean
