"""SyncBatchNorm: the whole batch's values, gradients and running statistics, for every way to share the batch."""

import numpy as np
import pytest
import torch
from distributed import batches
from distributed.pool import TIMEOUT
from draws import DTYPES, paired
from examine import formats, hold

from normlab import nn, oracle
from normlab.distributed import SyncBatchNorm
from normlab.host import family as host_family
from normlab.oracle import family, family_bounds, running

WAYS = [(5, 5), (1, 9), (0, 10), (10, 0), (4, 0, 6), (3, 1, 2, 4)]


def arithmetic(x, sizes, parameter: np.dtype) -> oracle.Arithmetic:
    """How SyncBatchNorm computes, in the oracle's words: sums in any order on a rank, then the tree."""
    shards = tuple(size * x[0, 0].size for size in sizes)
    rows = max(shards) + 4, (len(sizes) - 1).bit_length()
    columns = max(shards) + 1, len(sizes)  # the test adds up the ranks' gradients
    found = formats(x.dtype, x.dtype, parameter)
    return oracle.Arithmetic.of(rows, columns, **found, statistics="sharded", shards=shards)


def batch(dtype: str, shape, offset=0.0, affine=True) -> tuple:
    """(x, weight, bias, grad_output, running statistics) of a case; the parameters of a half input are float32."""
    rng = np.random.default_rng(0)
    parameter = np.float64 if dtype == "float64" else np.float32
    x, grad = (rng.normal(size=shape) + offset).astype(DTYPES[dtype]), rng.normal(size=shape).astype(DTYPES[dtype])
    weight, bias = (rng.normal(size=shape[1]).astype(parameter) if affine else None for _ in range(2))
    before = rng.normal(size=shape[1]).astype(parameter), rng.uniform(0.5, 2, shape[1]).astype(parameter)
    return x, weight, bias, grad, before


def of_kernels(given: tuple, sizes: tuple[int, ...], last: bool) -> oracle.Arithmetic:
    """How the kernels compute: two passes per piece, Chan's merges of pieces and of ranks; see `host.family.chains`."""
    x, *_, before = given
    mine = x[: max(sizes)]
    mine = np.moveaxis(np.ascontiguousarray(np.moveaxis(mine, 1, -1)), -1, 1) if last else np.ascontiguousarray(mine)
    rows, columns = host_family.chains("batch", mine)
    levels = (len(sizes) - 1).bit_length()
    longest = (rows.terms, rows.merges + levels + 2), (columns.terms, columns.merges + levels)  # 2: m2 of the variance
    return oracle.Arithmetic.of(*longest, statistics="merged", **formats(x.dtype, x.dtype, before[0].dtype))


def hold_to_bounds(given: tuple, sizes: tuple[int, ...], parts: list, how=None) -> None:
    """Assert that the ranks' results are within the oracle's bounds, and their running statistics equal."""
    x, weight, bias, grad, before = given
    how = how or arithmetic(x, sizes, before[0].dtype)
    sets, affine = family.batch_sets(x.shape), (weight, bias, 1e-5)
    errors = family_bounds.family_norm_bound(x, sets, *affine, how)
    want = family.family_norm(x, sets, *affine), family.family_norm_backward(grad, x, sets, *affine)
    limits = family_bounds.family_norm_backward_bound(grad, x, sets, *affine, how, errors)
    limits = family_bounds.stored(limits, want[1], how.parameter)
    output, grad_input, *sums, mean, var = zip(*parts, strict=True)
    hold(f"sync {how.statistics} output", np.concatenate(output), want[0].output, errors.output)
    hold(f"sync {how.statistics} grad_input", np.concatenate(grad_input), want[1].grad_input, limits.grad_input)
    for name, ranks_sums, right, limit in zip(("weight", "bias"), sums, want[1][1:], limits[1:], strict=True):
        got = None if ranks_sums[0] is None else np.sum(ranks_sums, axis=0, dtype=ranks_sums[0].dtype)
        hold(f"sync {how.statistics} grad_{name}", got, right, limit)
    after = x, sets, *before, 0.1
    right = running.running_statistics(*after)
    limit = running.running_statistics_bound(*after, how, before[0].dtype.name)
    hold(f"sync {how.statistics} running mean", mean[0], right.mean, limit.mean)
    hold(f"sync {how.statistics} running var", var[0], right.var, limit.var)
    for ranks_running in (mean, var):
        assert len({one.tobytes() for one in ranks_running}) == 1


@pytest.mark.parametrize(
    ("sizes", "dtype", "layout"),
    paired(WAYS, DTYPES, [((10, 6), False), ((10, 3, 2, 5), False), ((10, 3, 2, 5), True)]),
)
def test_every_way_to_share_a_batch_gives_the_whole_batch_s_results(ranks, sizes, dtype, layout):
    shape, last = layout
    given = batch(dtype, shape, offset=2.0)
    hold_to_bounds(given, sizes, ranks(batches.of_batch, *given, sizes, last, ranks=len(sizes)))


@pytest.mark.parametrize("sizes", [(5, 5), (1, 0, 9)], ids=str)
def test_means_far_from_0_and_no_parameters(ranks, sizes):
    given = batch("float32", (10, 3, 40), offset=1e4, affine=False)
    hold_to_bounds(given, sizes, ranks(batches.of_batch, *given, sizes, ranks=len(sizes)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(("shape", "sizes", "last"), [
    ((10, 6), (5, 5), False), ((4, 3, 2, 5), (2, 2), False), ((4, 3, 2, 5), (2, 2), True),
    ((3, 8, 3, 3), (1, 1, 1), True), ((2, 4), (1, 1), False), ((4, 2, 40, 40), (2, 2), False),
], ids=str)  # fmt: skip
def test_kernels_in_the_simulator(ranks, shape, sizes, last, dtype):
    given = batch(dtype, shape, offset=2.0)
    parts = ranks(batches.simulated, *given, sizes, last, ranks=len(sizes))
    for *_, names in parts:
        assert "family_merge_message" in names
        assert "family_merge_sums" in names
        assert "ranks_statistics" in names
        assert "ranks_means" in names
        assert len(names) == 8
    hold_to_bounds(given, sizes, [part[:-1] for part in parts], of_kernels(given, sizes, last))


@pytest.mark.parametrize("sizes", [(3, 4), (0, 7)], ids=str)
def test_an_output_may_be_changed_in_place(ranks, sizes):
    x = np.random.default_rng(0).normal(size=(7, 3, 5)).astype(np.float32)
    for changed, grad_changed, output, grad_input in ranks(batches.in_place, x, sizes, ranks=2):
        np.testing.assert_array_equal(changed, output)
        np.testing.assert_array_equal(grad_changed, grad_input)


def test_two_floats_per_channel_and_one_collective_per_pass_and_none_in_evaluation(ranks):
    assert ranks(batches.sends, 7, ranks=3) == [[[("torch.float32", 15), ("torch.float32", 14)], []]] * 3


@pytest.mark.parametrize("sizes", [(4, 4), (1, 7), (2, 3, 3)], ids=str)
def test_a_converted_model_trains_under_ddp_as_one_process_does_with_the_whole_batch(ranks, sizes):
    x = np.random.default_rng(0).normal(size=(8, 4))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6, momentum=None), torch.nn.Tanh(), torch.nn.BatchNorm1d(6)
    ).double()
    for _ in range(3):
        model.zero_grad()
        model(torch.tensor(x)).pow(3).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    want = [one.detach().double().numpy() for one in (*model.parameters(), *model.buffers())]
    for got in ranks(batches.trained, x, sizes, ranks=len(sizes)):
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_converting_keeps_parameters_and_buffers_and_other_modules():
    inner = torch.nn.BatchNorm2d(4, eps=0.1, momentum=None, affine=False)
    model = torch.nn.ModuleDict(
        {"a": torch.nn.Sequential(inner), "b": nn.BatchNorm1d(3), "c": torch.nn.InstanceNorm1d(3)}
    )
    states = model.state_dict(keep_vars=True)
    model.eval()
    converted = SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert [type(one) for one in (model["a"][0], model["b"])] == [SyncBatchNorm] * 2
    assert type(model["c"]) is torch.nn.InstanceNorm1d
    assert (model["a"][0].eps, model["a"][0].momentum, model["a"][0].training) == (0.1, None, False)
    after = model.state_dict(keep_vars=True)
    assert after.keys() == states.keys()
    assert all(after[name] is states[name] for name in states)
    assert type(SyncBatchNorm.convert_sync_batchnorm(inner)) is SyncBatchNorm


def test_without_a_process_group_it_is_batch_norm():
    x = torch.randn(4, 3, 5)
    one, other = SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
    for training in (True, False):
        torch.testing.assert_close(one.train(training)(x), other.train(training)(x))
    torch.testing.assert_close(one.running_var, other.running_var)


def test_no_sample_anywhere_leaves_the_running_statistics(ranks):
    for shape, mean, var in ranks(batches.nothing_anywhere, ranks=2):
        assert shape == (0, 3, 2)
        assert (mean.tolist(), var.tolist()) == ([2.0] * 3, [4.0] * 3)


def test_ranks_that_disagree_raise_one_error(ranks):
    found = ranks(batches.disagreements, ranks=3, fresh=TIMEOUT)
    (zero, one, two) = ([error[:2] for error in rank] for rank in found)
    assert zero == two
    assert zero[0] == one[0]
    assert zero[0][0] == "ValueError"
    assert zero[0][1].endswith(
        "rank 1: SyncBatchNorm of shape (*, 6, *), torch.float32, eps 1e-05, forward and backward"
    )
    assert one[1] == ("ValueError", "expected 5 channels, got input of shape (2, 6)")
    assert zero[1] == ("RuntimeError", f"a collective norm cannot run: rank 1 stopped with ValueError: {one[1][1]}")
    assert zero[2] == one[2]
    assert "rank 1: SyncBatchNorm of shape (*, 5, *), torch.float16" in zero[2][1]
    assert [rank[3][0] for rank in found] == [""] * 3
