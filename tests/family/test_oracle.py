"""The family's oracle against torch in float64, and its equivalences."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from normlab.oracle import Arithmetic, assert_within, family
from normlab.oracle.family_bounds import family_norm_bound

SHAPES = [(4, 6), (3, 6, 5), (2, 6, 3, 4), (2, 4, 2, 3, 2)]
NORMS = ("batch", "instance", "group", "layer")


def sets_of(norm, shape):
    """The index sets of a norm; two groups."""
    return {
        "batch": lambda: family.batch_sets(shape),
        "instance": lambda: family.instance_sets(shape),
        "group": lambda: family.group_sets(shape, 2),
        "layer": lambda: family.layer_sets(shape, len(shape) - 1),
    }[norm]()


def torch_norm(norm, x, weight, bias, eps):
    call = {
        "batch": lambda: functional.batch_norm(x, None, None, weight, bias, True, 0.1, eps),
        "instance": lambda: functional.instance_norm(x, None, None, weight, bias, True, 0.1, eps),
        "group": lambda: functional.group_norm(x, 2, weight, bias, eps),
        "layer": lambda: functional.layer_norm(x, x.shape[1:], weight, bias, eps),
    }
    return call[norm]()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_values_and_gradients_are_torch_s_in_float64(norm, shape):
    if norm == "instance" and len(shape) == 2:
        pytest.skip("torch has no instance norm of a matrix: every set would have one value")
    rng = np.random.default_rng(len(shape))
    sets = sets_of(norm, shape)
    x, dy = rng.normal(size=shape), rng.normal(size=shape)
    weight, bias = rng.normal(size=sets.parameters), rng.normal(size=sets.parameters)
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, weight, bias)]
    output = torch_norm(norm, *tensors, 1e-3)
    output.backward(torch.tensor(dy))
    got = family.family_norm(x, sets, weight, bias, 1e-3)
    np.testing.assert_allclose(got.output, output.detach(), rtol=1e-12, atol=1e-12)
    assert got.mean.shape == got.invvar.shape == sets.shape
    gradients = family.family_norm_backward(dy, x, sets, weight, bias, 1e-3)
    for mine, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(mine, tensor.grad, rtol=1e-11, atol=1e-12)
    assert family.family_norm_backward(dy, x, sets, None, None, 1e-3)[1:] == (None, None)


def test_evaluation_is_torch_s_in_float64():
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 4, 5))
    mean, var, weight, bias = rng.normal(size=4), rng.uniform(0.1, 2, 4), rng.normal(size=4), rng.normal(size=4)
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, weight, bias)]
    running = torch.tensor(mean), torch.tensor(var)
    output = functional.batch_norm(tensors[0], *running, *tensors[1:], False, 0.1, 1e-3)
    output.backward(torch.tensor(dy))
    got = family.evaluated_norm(x, mean, var, weight, bias, 1e-3)
    np.testing.assert_allclose(got.output, output.detach(), rtol=1e-12, atol=1e-12)
    gradients = family.evaluated_norm_backward(dy, x, mean, var, weight, bias, 1e-3)
    for mine, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(mine, tensor.grad, rtol=1e-12, atol=1e-12)


def chan(a, b):
    """Chan's merge, in float32."""
    (mean_a, m2_a, n_a), (mean_b, m2_b, n_b) = a, b
    n, delta = n_a + n_b, mean_b - mean_a
    share = n_b / n
    return mean_a + delta * share, m2_a + m2_b + delta * (delta * (n_a * share)), n


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_bound_of_merged_groups_holds_for_a_float32_tree(offset):
    """Groups of eight in two passes, then three levels of merges, as the kernels do it."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(200, 64)) + offset).astype(np.float32)
    groups = x.reshape(200, 8, 8)
    means = groups.sum(2, dtype=np.float32) / np.float32(8)
    m2s = ((groups - means[..., None]) ** 2).sum(2, dtype=np.float32)
    level = [(means[:, k], m2s[:, k], np.float32(8)) for k in range(8)]
    while len(level) > 1:
        level = [chan(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    ((mean, m2, count),) = level
    how = Arithmetic(row_terms=8, row_merges=3, column_terms=1, column_merges=0, statistics="merged")
    sets = family.layer_sets((200, 64), 1)
    bound, truth = family_norm_bound(x, sets, None, None, 0.0, how), family.family_norm(x, sets, eps=0.0)
    invvar = (1 / np.sqrt(m2 / count)).astype(np.float32)
    ratios = [
        assert_within(mean, truth.mean, bound.mean, "mean"),
        assert_within(invvar, truth.invvar, bound.invvar, "invvar"),
    ]
    assert min(ratios) > 0.001, "a bound that is a thousand times too wide proves little"
    with pytest.raises(AssertionError, match="invvar"):
        assert_within(invvar * np.float32(1.1), truth.invvar, bound.invvar, "invvar")
