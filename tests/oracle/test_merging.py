"""The oracle of merged moments: the whole set's values, and a bound that holds for float32 and is not loose."""

import numpy as np
import pytest

from normlab.oracle import Arithmetic, assert_within, merged_moments, merged_moments_bound
from normlab.oracle.floats import extended
from normlab.oracle.merging import tree
from normlab.oracle.moments import corrected, sharded

F = np.float32
HOW = {"row_terms": 64, "row_merges": 0, "column_terms": 1, "column_merges": 0, "statistics": "sharded"}
WAYS = [(64, 64), (1, 127), (127, 1), (0, 128), (128, 0), (5, 0, 60, 63), (8,) * 16, (0,)]


def parts_of(x, sizes):
    """The exact moments of each shard of x (sets, n), as float64: counts, means and m2s (shards, sets)."""
    cut = np.split(x.astype(np.float64), np.cumsum(sizes)[:-1], axis=1)
    means = [part.mean(1) if part.shape[1] else np.zeros(len(x)) for part in cut]
    m2s = [((part - mean[:, None]) ** 2).sum(1) for part, mean in zip(cut, means, strict=True)]
    return sizes, np.array(means), np.array(m2s)


def chan_tree(counts, means, m2s):
    """Chan's merges in float32, as `normlab.distributed.merging` makes them."""

    def pair(a, b):
        count = F(a[0] + b[0])
        share, delta = F(b[0] / max(count, F(1))), b[1] - a[1]
        return count, a[1] + delta * share, a[2] + b[2] + delta * (delta * (a[0] * share))

    return tree([(F(n), m.astype(F), q.astype(F)) for n, m, q in zip(counts, means, m2s, strict=True)], pair)


@pytest.mark.parametrize("sizes", WAYS, ids=str)
def test_merged_moments_are_those_of_the_whole_set(sizes):
    x = np.random.default_rng(0).normal(size=(3, sum(sizes))) + 5
    merged = merged_moments(*parts_of(x, sizes))
    mean = x.mean(1) if sum(sizes) else np.zeros(3)
    np.testing.assert_allclose(merged.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(merged.m2, ((x - mean[:, None]) ** 2).sum(1), rtol=1e-13)


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("sizes", [way for way in WAYS if sum(way)], ids=str)
def test_the_bound_holds_for_float32_and_not_for_an_average_of_the_means(sizes, offset):
    x = (np.random.default_rng(1).normal(size=(200, sum(sizes))) + offset).astype(F)
    x[:, : sizes[0]] += 1  # so that the shards' means differ
    counts, means, m2s = parts_of(x, sizes)
    truth = merged_moments(counts, means, m2s)
    u = 2.0**-24
    arithmetic = Arithmetic(**HOW, shards=sizes)
    bound = merged_moments_bound(counts, means, m2s, np.abs(means) * u, np.abs(m2s) * u, arithmetic)
    _, mean, m2 = chan_tree(counts, means, m2s)
    ratios = [assert_within(mean, truth.mean, bound.mean, "mean"), assert_within(m2, truth.m2, bound.m2, "m2")]
    if 0 in (sizes[0], sizes[-1]):
        return  # one shard has all
    assert min(ratios) > 0.05
    forgetful = m2s.sum(0).astype(F)  # of a merge that forgets how far the means are apart
    with pytest.raises(AssertionError, match="m2"):
        assert_within(forgetful, truth.m2, bound.m2, "m2")
    if len(set(sizes)) > 1 and offset < 1e6:
        with pytest.raises(AssertionError, match="mean"):
            assert_within(means.mean(0).astype(F), truth.mean, bound.mean, "mean")


def test_a_tree_of_1024_ranks_grows_by_levels_and_a_chain_of_merges_by_ranks():
    rng = np.random.default_rng(2)
    sizes = (32,) * 1024
    x = (rng.normal(size=(40, sum(sizes))) + 1000).astype(F)
    counts, means, m2s = parts_of(x, sizes)
    truth, arithmetic = merged_moments(counts, means, m2s), Arithmetic(**HOW, shards=sizes)
    u = 2.0**-24
    bound = merged_moments_bound(counts, means, m2s, np.abs(means) * u, np.abs(m2s) * u, arithmetic)
    _, mean, m2 = chan_tree(counts, means, m2s)
    assert assert_within(mean, truth.mean, bound.mean, "mean") > 0.05
    assert_within(m2, truth.m2, bound.m2, "m2")
    assert bound.mean.max() < 13 * u * 1001  # the part's own rounding, and one and a little per level of 10
    chain = means[0].astype(F), F(32)
    for one in means[1:].astype(F):
        count = F(chain[1] + 32)
        chain = chain[0] + (one - chain[0]) * F(F(32) / count), count
    assert np.abs(chain[0] - truth.mean).max() > np.abs(mean - truth.mean).max()


def test_two_corrected_passes_keep_a_mean_that_two_passes_lose():
    x = (np.random.default_rng(3).normal(size=(100, 4000)) + 1e4).astype(F)
    arithmetic = Arithmetic(**HOW | {"row_terms": 4000}, shards=(4000,))
    known = corrected(extended(x), arithmetic)
    total = np.zeros(100, F)
    for column in x.T:
        total += column
    mean = total / F(4000)
    deviation = x - mean[:, None]
    shift = np.zeros(100, F)
    for column in deviation.T:
        shift += column
    shift /= F(4000)
    right, limit = (np.asarray(one[:, 0], np.float64) for one in (known.mean, known.mean_error))
    assert_within(mean + shift, right, limit, "mean")
    with pytest.raises(AssertionError, match="mean"):
        assert_within(mean, right, limit, "mean")


def test_wrong_arguments():
    with pytest.raises(
        ValueError, match=r"2 counts need means and m2s of shape \(2, sets\), got \(1, 3\) and \(2, 3\)"
    ):
        merged_moments([1, 2], np.ones((1, 3)), np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"shards=\(\) and statistics='sharded' do not go together"):
        Arithmetic(**HOW)
    x = extended(np.ones((2, 5)))
    with pytest.raises(ValueError, match=r"shards=\(2, 2\) are 4 columns, but x has 5"):
        sharded(x, x[:, :1], Arithmetic(**HOW, shards=(2, 2)))
