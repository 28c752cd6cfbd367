"""The private names of torch.distributed that `normlab.distributed` uses, each with a fallback.

`normlab.nn.private` does the same for the rest of PyTorch.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# PyTorch 2.13 renamed all_gather_into_tensor, and warns of the old name.
gather_into: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def gathered_in_graph(message: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the messages of all ranks behind each other, by the functional collectives that a graph can hold."""
    operators = torch.ops._c10d_functional
    gathered = operators.all_gather_into_tensor(message, dist.get_world_size(group), group.group_name)
    return operators.wait_tensor(gathered)


def store_of(group: dist.ProcessGroup) -> Any:
    """Return the key-value store that a group's ranks share, or None if this group has none."""
    find = getattr(group, "get_group_store", None)
    try:
        return None if find is None else find()
    except (RuntimeError, ValueError):
        return None


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Return how long a collective of this group may take."""
    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout
        except (AttributeError, RuntimeError):
            continue
    return timedelta(minutes=30)
