"""Ranks that disagree, fail or stay away: one clear error on every rank, and no hang."""

import re

import pytest
import torch
from distributed import failures
from distributed.pool import QUICK, TIMEOUT

from normlab.distributed import sharded_layer_norm

NOTICED = 10  # seconds; the ranks' patience is 1 s, the group's timeout 60 s
DISAGREEMENTS = [
    "sharded_layer_norm of shape (4, *), torch.float32, eps 1e-05, forward alone; "
    "rank 1: sharded_layer_norm of shape (6, *), torch.float32, eps 1e-05, forward alone",
    "rank 1: sharded_layer_norm of shape (4, *), torch.bfloat16, eps 1e-05, forward alone",
    "rank 1: sharded_layer_norm of shape (4, *), torch.float32, eps 2e-05, forward alone",
    "rank 1: sharded_layer_norm of shape (4, *), torch.float32, eps 1e-05, forward and backward",
    "rank 1: sharded_rms_norm of shape (4, *), torch.float32, eps 1e-06, forward alone",
    "rank 1: sharded_layer_norm of shape (4, *), torch.float32, eps 1.00000001e-05, forward alone",
]


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_that_disagree_raise_one_error_and_the_group_can_go_on(ranks, count):
    found = ranks(failures.shapes, ranks=count, fresh=TIMEOUT)
    others = "rank 0" if count == 2 else "ranks 0, 2"
    for number, words in enumerate(DISAGREEMENTS):
        kind, text, seconds = zip(*(rank[number] for rank in found), strict=True)
        assert set(kind) == {"ValueError"}
        assert len(set(text)) == 1
        assert text[0].startswith(f"the ranks disagree on their norm: {others}: sharded_layer_norm of shape (4, *)")
        assert text[0].endswith(words)
        assert max(seconds) < NOTICED
    assert [rank[-1][0] for rank in found] == [""] * count


def test_a_disagreement_is_noticed_by_ranks_that_are_already_in_their_all_gather(ranks):
    found = ranks(failures.after_agreement, ranks=3, fresh=TIMEOUT)
    assert {kind for kind, *_ in found} == {"ValueError"}
    assert len({text for _, text, _ in found}) == 1
    assert "ranks 0, 2: sharded_rms_norm of shape (4, *)" in found[0][1]
    assert max(seconds for *_, seconds in found) < NOTICED


def test_an_error_of_one_rank_s_arguments_is_told_to_the_others(ranks):
    for (own, text, _), (other, others_text, seconds) in zip(
        *(found := ranks(failures.wrong_arguments, ranks=3, fresh=TIMEOUT))[1::-1], strict=True
    ):
        assert own == "RuntimeError"
        assert "weight" in text
        assert other == "RuntimeError"
        assert others_text == f"a collective norm cannot run: rank 1 stopped with {own}: {text}"
        assert seconds < NOTICED
    assert found[0][0][:2] == found[2][0][:2]


@pytest.mark.parametrize("function", [failures.one_differentiates_twice, failures.batches_differentiated_twice])
def test_a_second_derivative_on_one_rank_is_told_to_the_others(ranks, function):
    (other, told, seconds), (own, text, _) = ranks(function, fresh=TIMEOUT)
    assert own == "NotImplementedError"
    assert other == "RuntimeError"
    assert told == f"a collective norm cannot run: rank 1 stopped with {own}: {text}"
    assert seconds < NOTICED


@pytest.mark.parametrize("agreed", [False, True])
def test_a_rank_that_stays_away_is_named_after_the_group_s_timeout(ranks, agreed):
    found = ranks(failures.absent, agreed, ranks=3, fresh=QUICK)
    for kind, text, seconds in found[:2]:
        assert kind == "RuntimeError"
        assert re.match(r"rank 2 did not come within the group's timeout of 4 s to sharded_layer_norm of shape", text)
        assert QUICK - 1 < seconds < 3 * QUICK


def test_a_slow_rank_is_waited_for(ranks):
    assert [kind for kind, *_ in ranks(failures.slow, ranks=3, fresh=TIMEOUT)] == [""] * 3


def test_words_of_an_earlier_group_in_the_same_store_are_not_read(ranks):
    for first, second in ranks(failures.made_anew, ranks=3, fresh=TIMEOUT):
        assert (first[:2], second[:2]) == (("", ""), ("", ""))


def test_a_rank_outside_the_group_and_a_process_without_groups_are_told_so(ranks):
    kind, text, _ = ranks(failures.outsider)[0]
    assert (kind, text) == ("ValueError", "rank 0 is not in the process group that a norm was given")
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group first"):
        sharded_layer_norm(torch.ones(2, 2))


def test_what_is_no_process_group_is_named(ranks):
    for number, *meshes in ranks(failures.no_group):
        assert number[:2] == ("TypeError", "a norm's group must be a ProcessGroup or None, not float")
        for kind, text, _ in meshes:
            assert kind == "TypeError"
            assert text == "a norm's group must be a ProcessGroup or None, not DeviceMesh: give its get_group()"
