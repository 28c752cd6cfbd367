"""Sharded norms: values and gradients within the oracle's bounds for every way to shard, equal bits, few bytes."""

import examine
import hypothesis
import numpy as np
import pytest
import torch
from distributed import cases, noted
from draws import DTYPES, Case, paired
from draws import cases as drawn
from examine import backward_bound, backward_truth, forward_bound, forward_truth, hold
from hypothesis import strategies as st
from nn.norms import MODES, at_risk

from normlab import oracle
from normlab.distributed.merging import message_of
from normlab.host import sharded
from normlab.host.exact import Kept
from normlab.kernels.backward.split_rows import column_chains
from normlab.kernels.split import row_chains
from normlab.oracle.floats import extended
from normlab.oracle.moments import corrected

RESULTS = "output", "grad_input", "grad_weight", "grad_bias"


def arithmetic(case: Case, sizes: tuple[int, ...]) -> oracle.Arithmetic:
    """How `normlab.distributed` computes a case, in the oracle's words: sums in any order on a rank, then the tree."""
    rows, columns = (max(sizes) + 4, (len(sizes) - 1).bit_length()), (max(1, len(case.x)) + 1, 0)
    return examine.arithmetic(case, rows, columns, "sharded", shards=sizes)


def of_kernels(case: Case, sizes: tuple[int, ...]) -> oracle.Arithmetic:
    """How the kernels compute a case: two passes per piece, the merge of pieces, Chan's merges of ranks."""
    rows = row_chains(max(sizes))
    levels = (len(sizes) - 1).bit_length()
    columns = column_chains(len(case.x), max(sizes))
    return examine.arithmetic(case, (rows.terms, rows.merges + levels), columns, "merged")


def hold_to_bounds(case: Case, sizes: tuple[int, ...], mode, parts: list, how=None) -> None:
    """Assert that what the ranks returned is within the oracle's bounds."""
    how = how or arithmetic(case, sizes)
    kept = Kept(at_risk(case), None) if mode == "exact" else None
    truth = forward_truth(case).output, *backward_truth(case)
    bound = forward_bound(case, how).output, *backward_bound(case, how, mode, kept)
    for name, got, want, limit in zip(RESULTS, cases.joined(parts), truth, bound, strict=True):
        hold(f"sharded {how.statistics} {mode} {name}", got, want, limit)


@st.composite
def sharded_cases(draw) -> tuple[Case, tuple[int, ...]]:
    """A case and a way to shard it over 2 to 4 ranks, also with ranks that have no column."""
    case = draw(drawn(widths=(1, 2, 7, 33, 130), rows=(0, 1, 3)))
    ranks = draw(st.integers(2, 4), label="ranks")
    cuts = sorted(draw(st.lists(st.integers(0, case.n2), min_size=ranks - 1, max_size=ranks - 1), label="cuts"))
    return case, tuple(np.diff([0, *cuts, case.n2]).tolist())


@hypothesis.given(sharded_cases(), st.sampled_from(MODES))
@hypothesis.settings(
    max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, *hypothesis.HealthCheck]
)
def test_values_and_gradients_of_every_way_to_shard(ranks, sharded, mode):
    case, sizes = sharded
    hold_to_bounds(case, sizes, mode, ranks(cases.of_case, case, sizes, mode, ranks=len(sizes)))


def example(dtype="float32", rms=False, n1=6, n2=24, offset=0.0, seed=0) -> Case:
    rng = np.random.default_rng(seed)
    x, weight, bias, grad = (rng.normal(size=shape).astype(DTYPES[dtype]) for shape in ((n1, n2), n2, n2, (n1, n2)))
    return Case((x.astype(np.float64) + offset).astype(DTYPES[dtype]), weight, None if rms else bias, grad, 1e-5, rms)


WAYS = [(12, 12), (24, 0), (0, 24), (1, 23), (8, 8, 8), (0, 0, 24), (6, 6, 6, 6), (5, 0, 18, 1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rms", [False, True])
def test_all_ways_to_shard_agree_within_the_bounds_and_no_bound_is_loose(ranks, rms, dtype):
    case = example(dtype, rms)
    tightest = 0.0
    for sizes in WAYS:
        parts = ranks(cases.of_case, case, sizes, False, ranks=len(sizes))
        hold_to_bounds(case, sizes, False, parts)
        bound = forward_bound(case, arithmetic(case, sizes)).output
        tightest = max(tightest, oracle.ratio(cases.joined(parts)[0], forward_truth(case).output, bound))
    assert tightest > 0.01


@pytest.mark.parametrize(("shape", "rms", "mode"), paired([
    ((12, 12), 6, "float32"), ((8, 8, 8), 3, "bfloat16"), ((4104, 4100), 2, "float32"), ((7, 7), 70, "float16"),
], [False, True], [False, True]))  # fmt: skip
def test_kernels_in_the_simulator(ranks, shape, rms, mode):
    sizes, n1, dtype = shape
    case = example(dtype, rms, n1, sum(sizes), offset=3.0)
    parts = ranks(cases.simulated, case, sizes, mode, ranks=len(sizes))
    for *_, names in parts:
        assert names[:4] == ["forward_split_pieces", "ranks_message", "ranks_statistics", "forward_split_output"]
        assert names[4:7] == ["backward_split_sums", "backward_split_means", "ranks_means"]
        assert names[7] == "backward_split_gradients"
        assert set(names[8:]) <= {"backward_few_final_sums", "backward_final_sums"}
    hold_to_bounds(case, sizes, mode, [part[:-1] for part in parts], of_kernels(case, sizes))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_ranks_hold_the_same_bits_in_every_run(ranks, count):
    bits = {run for both in ranks(noted.messages, 50, ranks=count) for run in both}
    assert len(bits) == 1
    case = example(n2=24 // count)
    whole = Case(*(np.tile(one, count) for one in (case.x, case.weight, case.bias, case.grad_output)), 1e-5, False)
    for mode in MODES:  # all ranks have the same columns, so they have the same results
        first, *others = ranks(cases.of_case, whole, (case.n2,) * count, mode, ranks=count)
        for other in others:
            for one, another in zip(first, other, strict=True):
                assert one.tobytes() == another.tobytes()


@pytest.mark.parametrize("sizes", [(128, 128), (1, 200, 55), (64, 64, 64, 64)])
def test_a_mean_of_1e6_and_a_spread_of_1_keep_their_digits_and_sums_of_squares_lose_all(ranks, sizes):
    case = example(n1=8, n2=256, offset=1e6)
    plain = Case(case.x, None, None, case.grad_output, 1e-5, False)
    hold_to_bounds(plain, sizes, False, ranks(cases.of_case, plain, sizes, False, ranks=len(sizes)))
    truth, bound = forward_truth(plain).output, forward_bound(plain, arithmetic(plain, sizes)).output
    merged = cases.joined(ranks(cases.of_case, plain, sizes, False, ranks=len(sizes)))[0]
    assert np.abs(merged - truth).max() < 0.11  # float32 numbers near 1e6 are 1/16 apart, and means round 3 times
    assert bound.max() < 0.4
    (squared,) = cases.joined(
        [(one,) for one in ranks(cases.by_sums_of_squares, plain.x, sizes, 1e-5, ranks=len(sizes))]
    )
    assert oracle.ratio(squared, truth, bound) > 1
    assert not np.nanmax(np.abs(squared - truth)) < 0.5


def test_a_rank_s_own_mean_and_m2_are_corrected():
    x = (np.random.default_rng(3).normal(size=(1000, 100)) + 1e6).astype(np.float32)
    count, *moments = np.split(message_of(torch.from_numpy(x), (-1,), 100).numpy(), [1, 1001])
    assert count == 100
    known = corrected(extended(x), arithmetic(Case(x, None, None, x, 1e-5, False), (100,)))
    for name, got, right, limit in zip(("mean", "m2"), moments, known[1:3], known[3:], strict=True):
        hold(f"sharded part {name}", got, right[:, 0].astype(np.float64), limit[:, 0].astype(np.float64))


def test_a_constant_row_has_an_m2_of_0():
    x = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0)).expand(-1, 100) * 1e3
    assert (message_of(x, (-1,), 100)[1001:] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_one_collective_per_pass_of_2_floats_per_row(ranks, mode):
    for dtype, held in (("bfloat16", "torch.float32"), ("float64", "torch.float64")):
        assert ranks(noted.of_norm, dtype, False, mode, ranks=3) == [[(held, 11), (held, 10)]] * 3
        assert ranks(noted.of_norm, dtype, True, mode, ranks=3) == [[(held, 6), (held, 5)]] * 3


def test_heads_on_several_ranks_need_no_communication_and_parts_of_heads_are_merged(ranks):
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 4, 6), 6))
    truth = oracle.rms_norm(x, 6, weight, 1e-6).output
    for count in (2, 3):
        got = np.concatenate(ranks(cases.heads, x, weight, False, ranks=count), axis=2)
        np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-6)
    got = np.concatenate(ranks(cases.heads, x, weight, True, ranks=2), axis=1)
    np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-6)
    assert ranks(noted.of_heads, ranks=2) == [[], []]


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_gives_the_same_bits(ranks, mode):
    case = example()
    once, again = (ranks(cases.of_case, case, (10, 14), mode, recomputed) for recomputed in (False, True))
    for one, other in zip(cases.joined(once), cases.joined(again), strict=True):
        assert one.tobytes() == other.tobytes()


def test_autocast_rounds_the_output_and_a_second_derivative_is_refused(ranks):
    x = example().x
    assert ranks(cases.under_autocast, x) == ["torch.bfloat16"] * 2
    assert all("sharded_rms_norm has no second derivatives" in text for text in ranks(cases.twice_differentiated, x))


def test_arrays_on_two_devices_are_named_as_the_caller_names_them():
    x, weight, invvar = torch.ones(2, 4), torch.ones(4, device="meta"), torch.ones(2)
    with pytest.raises(ValueError, match="but x is on cpu and weight is on meta"):
        sharded.normalised(x, weight, None, None, invvar)
    with pytest.raises(ValueError, match="but means is on cpu and weight is on meta"):
        sharded.ShardedBackward(x, x, invvar, weight, None, None, 0.01, True, False, "float32").gradients(invvar)
