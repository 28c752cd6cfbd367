"""The oracle of running statistics: torch's in float64, and a bound that holds for float32 and is not loose."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from normlab.oracle import Arithmetic, assert_within, family
from normlab.oracle.running import running_statistics, running_statistics_bound


def sets_of(norm, shape):
    return family.batch_sets(shape) if norm == "batch" else family.instance_sets(shape)


@pytest.mark.parametrize("momentum", [0.1, 1.0, -0.5])
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_values_are_torch_s_in_float64(norm, momentum):
    rng = np.random.default_rng(0)
    x, mean, var = rng.normal(size=(3, 4, 5)) + 2, rng.normal(size=4), rng.uniform(0.1, 2, 4)
    tensors = [torch.tensor(array) for array in (x, mean, var)]
    getattr(functional, f"{norm}_norm")(*tensors, None, None, True, momentum)
    found = running_statistics(x, sets_of(norm, x.shape), mean, var, momentum)
    for mine, theirs in zip(found, tensors[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_the_bound_holds_for_float32_and_not_for_a_biased_variance(norm, storage):
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(4, 300, 6)) + 2).astype(np.float32)
    running = [one.astype(storage) for one in (rng.normal(size=300), rng.uniform(0.5, 2, 300))]
    over, count = ((0, 2), 24) if norm == "batch" else ((2,), 6)
    means = x.mean(over, keepdims=True, dtype=np.float32)
    variances = ((x - means) ** 2).sum(over, dtype=np.float32) / np.float32(count - 1)
    new = means.reshape(-1, 300).mean(0, dtype=np.float32), variances.reshape(-1, 300).mean(0, dtype=np.float32)
    m = np.float32(0.3)
    mean, var = (((1 - m) * old + m * one).astype(storage) for old, one in zip(running, new, strict=True))
    how = Arithmetic(row_terms=24, row_merges=0, column_terms=1, column_merges=0, statistics="two_pass")
    given = x, sets_of(norm, x.shape), *running, 0.3
    truth, bound = running_statistics(*given), running_statistics_bound(*given, how, storage)
    ratios = [assert_within(mean, truth.mean, bound.mean, "mean"), assert_within(var, truth.var, bound.var, "var")]
    assert min(ratios) > 0.02
    biased = ((1 - m) * running[1] + m * new[1] * np.float32((count - 1) / count)).astype(storage)
    with pytest.raises(AssertionError, match="var"):
        assert_within(biased, truth.var, bound.var, "var")
