"""Running statistics within the oracle's bounds: the kernels', and through PyTorch those of both its engines."""

import numpy as np
import pytest
import torch
from draws import DTYPES, paired
from examine import hold
from family.examples import example
from nn.family.faces import vectorised_arithmetic
from nn.norms import array, tensor
from numpy.lib.stride_tricks import as_strided

from normlab import nn
from normlab.host import family
from normlab.oracle.running import running_statistics, running_statistics_bound


def hold_running(what, one, before, after, momentum, how):
    """Hold updated statistics to their bounds."""
    given = one.x, one.sets, *before, momentum
    want, bound = running_statistics(*given), running_statistics_bound(*given, how, before[0].dtype.name)
    for name, got, right, limit in zip(want._fields, after, want, bound, strict=True):
        hold(f"{what} {one.norm} running {name}", got, right, limit)


def case(norm, dtype, storage, last):
    """An example, and running statistics."""
    one = example(norm, (5, 4, 3, 7), dtype, storage, last=last, offset=3.0)
    running = np.float64([1, -2, 0.5, 30]), np.float64([0.5, 2, 1, 1e-3])
    return one, tuple(values.astype(DTYPES[storage]) for values in running)


CASES = [("float32", "float32"), ("float64", "float64"), ("bfloat16", "float32"), ("float16", "float16")]


@pytest.mark.parametrize(("norm", "dtypes", "momentum"), paired(["batch", "instance"], CASES, [0.1, 1.0, -1.5]))
def test_the_kernels_are_within_the_bounds(norm, dtypes, momentum):
    one, before = case(norm, *dtypes, last=momentum == 1.0)
    after = [values.copy() for values in before]
    getattr(family, f"{norm}_norm")(one.x, *after, momentum=momentum)
    hold_running("family", one, before, after, momentum, one.arithmetic)


@pytest.mark.parametrize("world", ["auto", "simulator"])
@pytest.mark.parametrize(("dtype", "storage"), CASES)
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_through_pytorch_they_are_within_the_bounds(norm, dtype, storage, world):
    one, before = case(norm, dtype, storage, last=False)
    after = [tensor(values) for values in before]
    with nn.engine(world), torch.no_grad():
        getattr(nn, f"{norm}_norm")(tensor(one.x), *after, None, None, True, 0.3)
    how = one.arithmetic if world == "simulator" else vectorised_arithmetic(one)
    hold_running("nn", one, before, [array(values) for values in after], 0.3, how)


SHARED = {
    "NumPy": (np.asarray, lambda: as_strided(np.ones(1, np.float32), (4,), (0,)), "place for every element"),
    "torch": (torch.from_numpy, lambda: torch.ones(1).expand(4), "place for every element"),
    "nn": (torch.from_numpy, lambda: torch.ones(1).expand(4), "refers to a single memory location"),
}


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("norm", ["batch_norm", "instance_norm"])
def test_a_running_statistic_whose_elements_share_a_place_is_refused_and_neither_is_updated(norm, kind):
    made, shared, words = SHARED[kind]
    function = getattr(nn if kind == "nn" else family, norm)
    x, mean = made(np.ones((3, 4, 5), np.float32)), made(np.zeros(4, np.float32))
    with pytest.raises((ValueError, RuntimeError), match=words):
        function(x, mean, shared(), None, None, True)
    assert not mean.any()
    assert function(x, mean, shared(), None, None, False) is not None, "in evaluation they are only read"


@pytest.mark.parametrize("norm", [family.batch_norm, family.instance_norm])
def test_one_array_is_not_both_running_statistics(norm):
    both = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="must be two arrays, because both are updated in place"):
        norm(np.ones((3, 4, 5), np.float32), both, both)
    assert (both == 1).all()


@pytest.mark.parametrize("norm", [family.batch_norm, family.instance_norm])
def test_both_running_statistics_are_updated_or_neither(norm):
    x, mean, var = np.ones((3, 4, 5), np.float32), np.zeros(4, np.float32), np.ones(4, np.float32)
    var.flags.writeable = False
    with pytest.raises(ValueError, match="running_var must be writable, because it is updated in place"):
        norm(x, mean, var)
    assert not mean.any()
    given = (mean, var, None, None, False)
    assert norm(x, *given)[0].shape == x.shape, "in evaluation they are only read"
