"""How many columns the exact mode keeps on a GPU, without waiting for the GPU to count them.

The forward needs to know how much memory to ask for, and only the GPU knows how many columns are at risk. For a
parameter's first forward the host waits for the number. From then on it makes room for as many columns as were at risk
or near it (with a gamma within a factor of 2) when the GPU last said so: each forward writes that into pinned memory,
which the host reads without waiting. A column comes to risk through being near it, and parameters change little from
step to step, so it has its room in time. One that comes faster is recomputed as with memory_efficient=True until there
is room, and a warning says so.

Called by `normlab.nn.launched`.
"""

import warnings

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from normlab.keeping import Kept, keep_columns
from normlab.kernels.exact.choose import NEAR

GRAIN = 8  # columns: so that few capacities occur, each of which is prepared once


class Room:
    """What the GPU said last, about the columns of one parameter."""

    def __init__(self, owner: Tensor) -> None:
        self.storage = StorageWeakRef(owner.untyped_storage())
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


_rooms: dict[tuple, Room] = {}  # by where a parameter lies: compiled code gets it as another tensor


def keep(owner: Tensor, given: tuple) -> Kept:
    """`normlab.keeping.keep_columns` of given arguments, with the room that this parameter's columns need."""
    key = owner.untyped_storage()._cdata, owner.storage_offset(), owner.numel()
    room = _rooms.get(key)
    if room is None or room.storage.expired():
        for gone in [other for other, room in _rooms.items() if room.storage.expired()]:
            del _rooms[gone]
        room = _rooms[key] = Room(owner)
        return keep_columns(*given, counts=room.counts)
    return keep_columns(*given, capacity=room.capacity(), counts=room.counts)
