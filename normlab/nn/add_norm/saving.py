"""Choose in the forward which tensor the backward of a norm of x + residual keeps.

"exact" keeps the output, as True does, if no column is at risk (`normlab.nn.exact`), else the norm's input, as False
does. Gamma decides which columns are at risk. With an offset gamma is not the weight, so gamma gets memory of its own,
which stays the same: the exact mode's counts know parameters by their memory and version.
"""

import weakref
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from normlab.host.arrays import TorchBackend
from normlab.nn import engines, exact
from normlab.nn.add_norm.how import AddHow
from normlab.nn.formulas import accumulator
from normlab.nn.private import version_of
from normlab.nn.shapes import Owners


def keeps_output(how: AddHow, invvar: Tensor, output: Tensor, parameters: Owners, owners: Owners | None) -> bool:
    """Return True if the backward keeps the output.

    owners: the module's weight and bias; None is for modes other than "exact". parameters: those of the forward, which
    may be casts of them.
    """
    if how.memory_efficient != "exact" or owners is None:
        return bool(how.memory_efficient)
    if output.is_cuda and torch.cuda.is_current_stream_capturing():  # a graph cannot wait for the count
        return False
    weight, bias = parameters
    if weight is not None and how.offset:
        weight = gamma_of(owners[0], how.offset)
        owners = weight, owners[1]
    shape = tuple(output.shape[-1:])
    found = engines.chosen(output).columns_at_risk(invvar, output, shape, weight, bias, how.eps, owners)
    return not found.shape[0]


class _Gamma:
    """weight + offset of one norm, in memory of its own.

    seen: the count of optimizer steps and the weight's version when gamma was computed. stream: of its last use.
    """

    def __init__(self, weight: Tensor, offset: float) -> None:
        self.value = torch.empty_like(weight, dtype=accumulator(weight.dtype), requires_grad=False)
        self.offset = offset
        self.seen: tuple[int, Any] | None = None
        self.use(weight)

    def use(self, weight: Tensor) -> None:
        """Note the weight's tensor, because other tensors in the same memory have other versions, and the stream."""
        self.weight = weakref.ref(weight)
        self.stream = TorchBackend(weight.device).stream if weight.is_cuda else None

    def update(self) -> None:
        """Compute the value again if the weight may have changed; not while its memory is freed, as by FSDP."""
        weight = self.weight()
        if weight is None or weight.untyped_storage().nbytes() == 0:
            return
        now = exact.Steps.count, version_of(weight)
        if now != self.seen:
            self.value.copy_(weight).add_(self.offset)
            self.seen = now


_known: "weakref.WeakSet[_Gamma]" = weakref.WeakSet()
_lock = RLock()


@torch.no_grad()
def gamma_of(weight: Any, offset: float) -> Tensor:
    """Return weight + offset in accumulator precision, in the same memory in each call; a change raises its version.

    It is computed again after each change of the weight and after each optimizer step. After a step, the first call
    computes those of all norms on its stream, because the count that follows it is one launch for all of them.
    """
    if weight.is_inference():
        return weight.to(accumulator(weight.dtype)) + offset
    storage = weight.untyped_storage()
    if not hasattr(storage, "normlab_gamma"):
        storage.normlab_gamma = {}
    key = weight.storage_offset(), weight.shape, weight.dtype, offset
    gamma = storage.normlab_gamma.get(key)
    with _lock:
        if gamma is None:
            gamma = storage.normlab_gamma[key] = _Gamma(weight, offset)
            _known.add(gamma)
        gamma.use(weight)
        stepped = gamma.seen is not None and gamma.seen[0] != exact.Steps.count
        for one in list(_known) if stepped else [gamma]:
            if (one.value.device, one.stream) == (weight.device, gamma.stream):
                one.update()
    return gamma.value
