"""What a rank of `normlab.distributed` sends: the numbers of each collective, noted while a function runs."""

from unittest.mock import patch

import numpy as np
import torch
from distributed.cases import heads, norm

from normlab.distributed import collectives


def sent(function, *args) -> list[tuple[str, int]]:
    """(dtype, number of elements) of each message that a function gives to a collective."""
    found = []

    def gather(output, message, *others, **more):
        found.append((str(message.dtype), message.numel()))
        return collectives_gather(output, message, *others, **more)

    collectives_gather = collectives.gather_into
    with patch.object(collectives, "gather_into", gather):
        function(*args)
    return found


def of_norm(group, dtype: str, rms: bool, mode) -> list:
    """What a forward and a backward of 5 rows of 3 columns per rank send."""

    def forward_and_backward():
        leaves = [torch.ones(shape, dtype=getattr(torch, dtype), requires_grad=True) for shape in ((5, 3), (3,), (3,))]
        norm(group, leaves, rms, 1e-5, mode).sum().backward()

    return sent(forward_and_backward)


def of_heads(group) -> list:
    """What a per-head norm with sharded heads sends."""
    return sent(heads, group, np.ones((2, 12, 6), np.float32), np.ones(6, np.float32), True)


def messages(group, rows: int) -> tuple[bytes, bytes]:
    """The bits of the merged moments of random parts, and those of a second run."""
    rank = torch.distributed.get_rank(group)
    made = torch.randn(2 * rows + 1, generator=torch.Generator().manual_seed(rank))
    made[0] = 3.0 + rank
    call = collectives.Call("messages", (rows, "*"), ())
    from normlab.distributed.merging import merged

    runs = [merged(collectives.gather(made, group, call), False) for _ in range(2)]
    return tuple(torch.cat(run).numpy().tobytes() for run in runs)
