"""Ranks that disagree, fail or stay away, and the errors that each rank then gets."""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from normlab.distributed import SyncBatchNorm, sharded_layer_norm, sharded_rms_norm
from normlab.distributed.board import Board


def told(function, *args, **more) -> tuple[str, str, float]:
    """(type, message, seconds) of the error of a call; ("", "", seconds) if there is none."""
    began = time.perf_counter()
    try:
        function(*args, **more)
    except Exception as error:
        return type(error).__name__, str(error), time.perf_counter() - began
    return "", "", time.perf_counter() - began


def shapes(group) -> list:
    """Disagreements in turn, then a call that is right: (type, message, seconds) each."""
    rank = dist.get_rank(group)
    odd = rank == 1
    found = [
        told(sharded_layer_norm, torch.ones(4 + 2 * odd, 3), None, None, group),
        told(sharded_layer_norm, torch.ones(4, 3, dtype=torch.bfloat16 if odd else torch.float32), None, None, group),
        told(sharded_layer_norm, torch.ones(4, 3), None, None, group, 1e-5 * (1 + odd)),
        told(sharded_layer_norm, torch.ones(4, 3, requires_grad=odd), None, None, group),
        told(sharded_rms_norm if odd else sharded_layer_norm, torch.ones(4, 3), group=group),
        told(sharded_layer_norm, torch.ones(4, 3), None, None, group, 1e-5 * (1 + 1e-8 * odd)),
    ]
    return [*found, told(sharded_layer_norm, torch.ones(4, 3), None, None, group)]


def after_agreement(group) -> tuple:
    """A call that all ranks have agreed on, then one rank with other rows: the others are in their all-gather."""
    rank = dist.get_rank(group)
    sharded_rms_norm(torch.ones(4, 3), None, group)
    if rank == 2:
        time.sleep(0.6)  # it writes its words after the first rank has read those of the odd one
    return told(sharded_rms_norm, torch.ones(4 + (rank == 1), 3), None, group)


def wrong_arguments(group) -> list:
    """One rank's own error: before any agreement, then after one."""
    rank = dist.get_rank(group)
    weight = torch.ones(3 + (rank == 1))
    first = told(sharded_rms_norm, torch.ones(4, 3), weight, group)
    sharded_rms_norm(torch.ones(4, 3), torch.ones(3), group)
    return [first, told(sharded_rms_norm, torch.ones(4, 3), weight, group)]


def one_differentiates_twice(group) -> tuple:
    """Rank 1's backward has create_graph=True, the others' have not."""
    x = torch.ones(4, 3, requires_grad=True)
    output = sharded_layer_norm(x, None, None, group)
    return told(torch.autograd.grad, output.sum(), x, create_graph=dist.get_rank(group) == 1)


def batches_differentiated_twice(group) -> tuple:
    """As `one_differentiates_twice`, of a SyncBatchNorm."""
    x = torch.ones(4, 3, requires_grad=True)
    output = SyncBatchNorm(3, process_group=group)(x)
    return told(torch.autograd.grad, output.sum(), x, create_graph=dist.get_rank(group) == 1)


def no_group(group) -> list:
    """What is no process group: an eps in the group's place, and a mesh."""
    mesh = DeviceMesh.from_group(group, "cpu")
    x = torch.ones(2, 3)
    return [
        told(sharded_rms_norm, x, None, 1e-6),
        told(sharded_layer_norm, x, None, None, mesh),
        told(SyncBatchNorm(3, process_group=mesh), x),
    ]


def absent(group, agreed: bool) -> tuple:
    """The last rank does not come; agreed: to a call that it came to before."""
    last = dist.get_rank(group) == dist.get_world_size(group) - 1
    if agreed:
        sharded_layer_norm(torch.ones(4, 3), None, None, group)
    if last:
        return "", "", 0.0
    return told(sharded_layer_norm, torch.ones(4, 3), None, None, group)


def slow(group) -> tuple:
    """The last rank comes later than the others' patience, but within the timeout."""
    sharded_layer_norm(torch.ones(4, 3), None, None, group)
    if dist.get_rank(group) == dist.get_world_size(group) - 1:
        time.sleep(1.8)
    return told(sharded_layer_norm, torch.ones(4, 3), None, None, group)


def made_anew(group) -> list:
    """Two boards of one store, as of a group that is destroyed and made anew; rank 0 is late at the second."""
    first, second = Board(group), Board(group)
    found = [told(first.agree, "call", lambda: "the old group's words")]
    if dist.get_rank(group) == 0:
        time.sleep(0.3)
    return [*found, told(second.agree, "call", lambda: "the new group's words")]


def outsider(group) -> tuple[str, str, float]:
    """A group that this rank is not in, on rank 0."""
    other = dist.GroupMember.NON_GROUP_MEMBER if dist.get_rank(group) == 0 else group
    return told(sharded_rms_norm, torch.ones(2, 2), None, other) if other is not group else ("", "", 0.0)
