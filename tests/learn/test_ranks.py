"""`normlab.learn.ranks` runs a function on forked ranks, and tells which ranks failed."""

import os

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
