"""Values and gradients within the oracle's bounds: PyTorch's operations on a CPU, and the kernels, simulated."""

import numpy as np
import pytest
import torch
from draws import paired
from family.examples import NORMS, example
from nn.family.faces import hold_to_bounds, through_torch, vectorised_arithmetic
from nn.norms import array, tensor

from normlab import nn
from normlab.host import family
from normlab.oracle import family as truth

SHAPES = [(8, 6), (4, 6, 5), (2, 6, 3, 5), (2, 6, 2, 3, 2)]
DTYPES = [("float32", None), ("float64", None), ("float16", "float32"), ("bfloat16", None)]
LAST = [False, True]
FAR = [
    *(("batch", (3, 20, 5, 4), 1), ("instance", (3, 20, 5, 4), 1)),
    *(("group", (3, 20, 5, 4), 10), ("group", (9, 4, 5, 4), 1), ("group", (1, 4, 8, 9), 1)),
]


def possible(norm, shape, *_):
    """An instance of two dimensions would have one value: an error, as in torch."""
    return norm != "instance" or len(shape) > 2


@pytest.mark.parametrize(("norm", "shape", "dtypes", "last"), paired(NORMS, SHAPES, DTYPES, LAST, possible=possible))
def test_on_a_cpu(norm, shape, dtypes, last):
    one = example(norm, shape, *dtypes, groups=2, last=last and len(shape) > 2, offset=2.0)
    hold_to_bounds(one, vectorised_arithmetic(one))


def in_range(_, offset, dtypes, __):
    """1e6 is beyond float16's largest number."""
    return offset < 6e4 or dtypes[0] != "float16"


@pytest.mark.parametrize(
    ("given", "offset", "dtypes", "last"), paired(FAR, [3.0, 30.0, 1e3, 1e6], DTYPES, LAST, possible=in_range)
)
def test_on_a_cpu_with_means_far_from_0(given, offset, dtypes, last):
    norm, shape, groups = given
    one = example(norm, shape, *dtypes, groups=groups, last=last, offset=offset)
    hold_to_bounds(one, vectorised_arithmetic(one))
    if dtypes[0] != "float64":  # as which the truth is computed
        right = truth.family_norm(one.x, one.sets, one.weight, one.bias, one.eps).output
        rounding = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtypes[0]]
        error = np.abs(array(through_torch(one)[0]).astype(np.float64) - right)
        assert error.max() <= rounding * np.abs(right).max()  # no digit is lost


@pytest.mark.parametrize("affine", ["weight", "bias", "none"])
@pytest.mark.parametrize("norm", NORMS)
def test_parameters_may_be_missing(norm, affine):
    one = example(norm, (4, 6, 5), groups=3, affine=affine)
    hold_to_bounds(one, vectorised_arithmetic(one))


@pytest.mark.parametrize(("shape", "dtypes", "last"), [
    ((4, 6), ("float32", None), False),
    ((2, 6, 3, 5), ("float32", None), False),
    ((2, 6, 3, 5), ("bfloat16", "float32"), True),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("norm", NORMS)
def test_in_the_simulator(norm, shape, dtypes, last):
    if not possible(norm, shape):
        pytest.skip("an error, as in torch")
    one = example(norm, shape, *dtypes, groups=2, last=last, offset=2.0)
    with nn.engine("simulator"):
        hold_to_bounds(one, one.arithmetic)


@pytest.mark.parametrize("world", ["auto", "simulator"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_with_running_statistics(norm, last, world):
    one = example(norm, (3, 4, 2, 3), "bfloat16", "float32", last=last)
    running = np.float32([0.5, -1, 0, 2]), np.float32([1, 0.25, 3, 1e-3])
    with nn.engine(world):
        hold_to_bounds(one, one.arithmetic if world == "simulator" else vectorised_arithmetic(one), running)


@pytest.mark.parametrize(
    ("norm", "offset", "dtypes", "last"), paired(["batch", "instance"], [0.0, 2.0, 8.0, 1e3], DTYPES, LAST)
)
def test_with_running_statistics_on_a_cpu(norm, offset, dtypes, last):
    one = example(norm, (8, 6, 30, 30), *dtypes, last=last, offset=offset)
    mean = np.array([0, 1, -1, 0.5, 0, 2]) + offset
    running = tuple(values.astype(one.weight.dtype) for values in (mean, np.array([1, 0.25, 3, 1e-3, 2, 1])))
    hold_to_bounds(one, vectorised_arithmetic(one), running)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_running_statistics_of_means_far_from_0(norm, offset):
    x = tensor(example(norm, (4, 20, 6, 5), "float64", offset=offset).x)
    running = [torch.zeros(20, dtype=torch.float32), torch.ones(20, dtype=torch.float32)]
    wide = [one.double() for one in running]
    getattr(nn, f"{norm}_norm")(x.float(), *running, None, None, True, 0.3)
    getattr(torch.nn.functional, f"{norm}_norm")(x.float().double(), *wide, None, None, True, 0.3)
    for one, other in zip(running, wide, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_kernels_run_forward_and_backward_where_the_forward_was(norm, monkeypatch):
    called = []
    for name in (f"{norm}_norm", f"{norm}_norm_backward"):
        function = getattr(family, name)
        monkeypatch.setattr(family, name, lambda *a, f=function, n=name, **k: called.append(n) or f(*a, **k))
    given = {"batch": (None, None, None, None, True), "instance": (), "group": (2,)}[norm]
    x = torch.randn(2, 4, 3, requires_grad=True)
    with nn.engine("simulator"):
        output = getattr(nn, f"{norm}_norm")(x, *given)
    output.sum().backward()
    assert called == [f"{norm}_norm", f"{norm}_norm_backward"]
    output = getattr(nn, f"{norm}_norm")(x, *given)
    with nn.engine("simulator"):
        output.sum().backward()
    assert len(called) == 2


@pytest.mark.parametrize("world", ["auto", "simulator"])
def test_of_any_other_strides_a_copy_is_taken(world):
    torch.manual_seed(0)
    x = torch.randn(6, 4, 2, requires_grad=True)
    with nn.engine(world):
        output = nn.group_norm(x.transpose(0, 2)[:, :, ::2], 2)
        want = nn.group_norm(x.transpose(0, 2)[:, :, ::2].contiguous(), 2)
    assert output.is_contiguous()
    torch.testing.assert_close(output, want, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(output.square().sum(), x)
    assert gradient[::2].abs().sum() > 0
    assert not gradient[1::2].any()
