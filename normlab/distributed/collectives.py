"""The one collective of a norm: an all-gather of one message per rank, in eager PyTorch and in graphs.

An all-gather, not an all-reduce, also for sums: every rank then adds the same numbers in the same order, so that all
ranks hold the same bits in every run. An all-reduce leaves the order to the network.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from normlab.distributed.board import board_of
from normlab.distributed.private import gather_into, gathered_in_graph
from normlab.nn.private import in_a_graph


class Call(NamedTuple):
    """A norm's call, which must be equal on all ranks of its group.

    name: the public function's. shape: x's, with "*" for a size that may differ between ranks. what: dtype and options.
    """

    name: str
    shape: tuple[int | str, ...]
    what: tuple[Any, ...]

    def words(self) -> str:
        """Return the call in words.

        >>> Call("sharded_rms_norm", (4, 3, "*"), ("float32", "eps 1e-06")).words()
        'sharded_rms_norm of shape (4, 3, *), float32, eps 1e-06'
        """
        shape = ", ".join(map(str, self.shape))
        return ", ".join((f"{self.name} of shape ({shape})", *map(str, self.what)))


def group_or_world(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the given group, or for None the group of all ranks.

    Raises:
        RuntimeError: torch.distributed has not been initialised.
        TypeError: the group is no ProcessGroup, but a DeviceMesh, say. ValueError: this rank is not in the group.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("normlab.distributed needs a process group: call torch.distributed.init_process_group first")
    found = dist.group.WORLD if group is None else group
    if found is None or found is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"rank {dist.get_rank()} is not in the process group that a norm was given")
    if not isinstance(found, dist.ProcessGroup):
        hint = ": give its get_group()" if hasattr(found, "get_group") else ""
        raise TypeError(f"a norm's group must be a ProcessGroup or None, not {type(found).__name__}{hint}")
    return found


def checked(group: dist.ProcessGroup, check: Callable[[], None]) -> None:
    """Run the checks of this rank's arguments. If they fail, tell the group, so that no rank waits for this one."""
    try:
        check()
    except Exception as error:
        if dist.get_world_size(group) > 1:
            board_of(group).stopped(error)
        raise


def gather(message: Tensor, group: dist.ProcessGroup, call: Call) -> Tensor:
    """Return the messages of all ranks in the order of ranks, (ranks, *message.shape). message: (n,).

    Raises:
        ValueError, RuntimeError: in eager PyTorch, as `board.Board.agree` and `finish`.
    """
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return message[None]
    if in_a_graph(message):
        return gathered_in_graph(message, group).view(ranks, message.shape[0])
    board = board_of(group)
    board.agree(call, call.words)
    gathered = message.new_empty(ranks * message.shape[0])
    if message.is_cpu:
        # async_op, so that the board can compare the ranks' calls if this rank waits for long
        board.finish(gather_into(gathered, message, group, async_op=True), call.words)
    else:
        # Not async_op, which takes a stream of its own: a profile of the host showed 0.2 ms in this function with it.
        gather_into(gathered, message, group)
    return gathered.view(ranks, message.shape[0])


def refuse_second_derivatives(call: Call) -> None:
    """Raise NotImplementedError in a backward that will be differentiated: autograd sees no further than one rank.

    Run it by `checked`: other ranks may call their backwards without create_graph=True.
    """
    if torch.is_grad_enabled():
        raise NotImplementedError(f"{call.name} has no second derivatives: call the backward without create_graph=True")
