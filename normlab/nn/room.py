"""How many columns the exact mode keeps on a GPU, without waiting for the GPU to count them.

The forward needs to know how much memory to ask for, and only the GPU knows how many columns are at risk. For a
parameter's first forward the host waits for the number. From then on it makes room for as many columns as were at risk
or near it (with a gamma within a factor of 2) when the GPU last said so: each forward writes that into pinned memory,
which the host reads without waiting. A column comes to risk through being near it, and an optimizer's step changes
parameters little, so it has its room in time.

Parameters that were changed in another way (loaded, initialised, set by hand) are counted again, which waits once more.
Hooks before and behind every optimizer step tell the two apart by the parameters' version counters. Where more columns
come to risk than there is room for all the same, because a step was large or no counter shows the change (`.data`),
those without room are recomputed this once as with memory_efficient=True, and a warning says so.

Called by `normlab.nn.launched`.
"""

import warnings
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normlab.keeping import Kept, keep_columns
from normlab.kernels.exact.choose import NEAR

GRAIN = 8  # columns: so that few capacities occur, each of which is prepared once
Key: TypeAlias = tuple[int, int, int]
"""Where a parameter lies: compiled code gets it as another tensor."""


class Room:
    """What the GPU said last, about the columns of one parameter, and for which versions of it and its bias."""

    def __init__(self, owner: Tensor) -> None:
        self.storage = StorageWeakRef(owner.untyped_storage())
        self.versions: dict[Key, int] = {}
        self.counts = torch.zeros(2, dtype=torch.int64, pin_memory=owner.is_cuda)
        self._read = self.counts.numpy()  # shares the memory; to read it takes a tenth of a tensor's time
        self._lost = 0

    def capacity(self) -> int:
        """Room for the columns at risk or near it; warns if some found none since it was last asked."""
        said, lost = int(self._read[0]), int(self._read[1])
        if lost > self._lost:
            warnings.warn(
                f"{lost - self._lost} columns came to risk sooner than room was made for their normalised values; "
                'they were recomputed as with memory_efficient=True, not "exact"',
                RuntimeWarning,
                stacklevel=2,
            )
            self._lost = lost
        return -(-(said // NEAR) // GRAIN) * GRAIN


_rooms: dict[Key, Room] = {}


def keep(owner: Tensor, given: tuple) -> Kept:
    """`normlab.keeping.keep_columns` of given arguments, with the room that this parameter's columns need.

    Raises:
        RuntimeError: a CUDA graph is being captured, and the columns have to be counted.
    """
    key, bias = _key(owner), given[5]
    room = _rooms.get(key)
    if room is None or room.storage.expired():
        for gone in [other for other, room in _rooms.items() if room.storage.expired()]:
            del _rooms[gone]
        room = _rooms[key] = Room(owner)
    versions = {key: owner._version}
    if isinstance(bias, torch.nn.Parameter):  # and not what autocast has made of it
        versions[_key(bias)] = bias._version
    if versions == room.versions:
        return keep_columns(*given, capacity=room.capacity(), counts=room.counts)
    if owner.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            'memory_efficient="exact" has to count the columns at risk of new or changed parameters, which a CUDA '
            "graph cannot wait for: run the norm once before the capture"
        )
    kept = keep_columns(*given, counts=room.counts)
    room.versions = versions
    return kept


def _key(parameter: Tensor) -> Key:
    return parameter.untyped_storage()._cdata, int(parameter.storage_offset()), parameter.numel()


def _versions(optimizer: torch.optim.Optimizer) -> dict[Key, int]:
    """Of all its parameters that are no more than tensors."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    plain = (Tensor, torch.nn.Parameter)
    return {_key(parameter): parameter._version for parameter in parameters if type(parameter) in plain}


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Forget what was said of parameters that somebody else has changed."""
    now = _versions(optimizer) if _rooms else {}
    for room in _rooms.values():
        if any(now.get(key, version) != version for key, version in room.versions.items()):
            room.versions = {}


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Take what was said of parameters for near the truth, now that the optimizer has changed them."""
    now = _versions(optimizer) if _rooms else {}
    for room in _rooms.values():
        room.versions = {key: now.get(key, version) for key, version in room.versions.items()}


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)
