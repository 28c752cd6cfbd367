"""`normlab.learn.ranks` runs a function on forked ranks, and tells which ranks failed."""

import os
import time

import pytest

torch = pytest.importorskip("torch")

from normlab.learn.ranks import on_ranks  # noqa: E402


def added(offset):
    """The sum of all ranks' numbers, and who computed it."""
    import torch.distributed as dist

    mine = torch.tensor([float(dist.get_rank() + offset)])
    dist.all_reduce(mine)
    return mine.item(), os.getpid()


def test_each_rank_is_a_process_of_one_group():
    sums, processes = zip(*on_ranks(3, added, 10), strict=True)
    assert sums == (33.0,) * 3
    assert len({*processes, os.getpid()}) == 4


def late(seconds):
    """A tensor of each rank; rank 0's comes last."""
    import torch.distributed as dist

    time.sleep(seconds if dist.get_rank() == 0 else 0)
    return torch.full((3,), dist.get_rank())


def test_tensors_arrive_from_a_rank_that_has_ended():
    assert [one.tolist() for one in on_ranks(2, late, 2)] == [[0] * 3, [1] * 3]


def dying():
    """An end of rank 0 without an answer, and an answer of rank 1 that fills its pipe."""
    import torch.distributed as dist

    return bytes(10**6) if dist.get_rank() else os._exit(0)


def test_a_rank_that_dies_does_not_keep_others_answers_waiting():
    with pytest.raises(RuntimeError, match=r"^rank 0:\nthe process ended without an answer$"):
        on_ranks(2, dying)


def failing():
    """An error on rank 1, and an end without an answer on rank 2."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise KeyError("lost")
    if dist.get_rank() == 2:
        os._exit(0)


def test_errors_name_their_ranks():
    with pytest.raises(RuntimeError, match=r"(?s)rank 1:.*KeyError: 'lost'.*rank 2:\nthe process ended") as raised:
        on_ranks(3, failing)
    assert "rank 0" not in str(raised.value)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        on_ranks(0, failing)
