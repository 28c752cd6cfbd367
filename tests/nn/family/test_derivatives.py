"""Derivatives, once and twice, with the input's statistics and with the running ones; torch.func's transforms."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jvp, vmap

from normlab import nn

SHAPES = [(4, 4), (3, 4, 2), (2, 4, 1, 3), (2, 4, 1, 2, 2)]


def case(norm, own, shape=(3, 4, 2)):
    """(function of x, weight, bias; PyTorch's; those in float64)."""
    torch.manual_seed(0)
    x, *affine = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in (shape, 4, 4))
    running = torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.5
    if own:
        running = (None, None)

    def function(library):
        if norm == "group":
            return lambda x, weight, bias: library.group_norm(x, 2, weight, bias)
        return lambda x, weight, bias: getattr(library, f"{norm}_norm")(x, *running, weight, bias, own)

    return function(nn), function(torch.nn.functional), (x, *affine)


CASES = [("batch", True), ("batch", False), ("instance", True), ("instance", False), ("group", True)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("norm", "own"), CASES)
def test_gradcheck_and_gradgradcheck(norm, own, shape):
    if norm == "instance" and own and len(shape) == 2:
        pytest.skip("every set would have one value: an error, as in torch")
    function, _, inputs = case(norm, own, shape)
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_gradgradcheck_where_the_kernels_compute(norm):
    function, _, inputs = case(norm, True, (2, 4, 2))
    with nn.engine("simulator"):
        assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize(("norm", "own"), CASES)
def test_missing_parameters_and_frozen_tensors_get_no_gradient(norm, own):
    function, theirs, (x, weight, bias) = case(norm, own)
    for given in ((x, None, bias), (x, weight, None), (x.detach(), weight, bias), (x, weight.detach(), bias)):
        leaves = [one for one in given if one is not None and one.requires_grad]
        dy = torch.linspace(-1, 2, x.numel(), dtype=x.dtype).reshape(x.shape)
        got = torch.autograd.grad(function(*given), leaves, dy)
        if norm == "group" and given[1] is None:  # PyTorch 2.13's backward fails: "tensor does not have a device"
            given = (x, torch.ones_like(weight), bias)
        want = torch.autograd.grad(theirs(*given), leaves, dy)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("norm", "own"), CASES)
def test_running_statistics_that_change_after_the_forward_do_not_change_its_backward(norm, own):
    if norm == "group":
        pytest.skip("it has none")
    torch.manual_seed(0)
    x, running = torch.randn(3, 4, 2, requires_grad=True), [torch.zeros(4), torch.ones(4)]
    output = getattr(nn, f"{norm}_norm")(x, *running, training=own) if norm == "batch" else nn.instance_norm(
        x, *running, use_input_stats=own
    )  # fmt: skip
    (want,) = torch.autograd.grad(output.square().sum(), x, retain_graph=True)
    for one in running:
        one.fill_(7)
    (got,) = torch.autograd.grad(output.square().sum(), x)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


TRANSFORMS = {
    "grad": lambda f: grad(lambda x, w, b: (f(x, w, b) * w).square().sum(), argnums=(0, 1, 2)),
    "vmap": lambda f: lambda x, w, b: vmap(f, in_dims=(0, None, None))(torch.stack((x, x * x)), w, b),
    "jacfwd": lambda f: jacfwd(f, argnums=1),
    "jvp": lambda f: lambda x, w, b: jvp(f, (x, w, b), (torch.ones_like(x) * w, w, b)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("norm", "own"), CASES)
def test_transforms_are_torch_s(norm, own, transform):
    ours, theirs, inputs = case(norm, own, (3, 4, 4))
    inputs = [one.detach() for one in inputs]
    torch.testing.assert_close(TRANSFORMS[transform](ours)(*inputs), TRANSFORMS[transform](theirs)(*inputs))


@pytest.mark.usefixtures("forget_compiled")
@pytest.mark.parametrize("transform", ["grad", "vmap"])
@pytest.mark.parametrize(("norm", "own"), CASES)
def test_compiled_transforms_are_torch_s(norm, own, transform):
    ours, theirs, inputs = case(norm, own, (3, 4, 4))
    inputs = [one.detach() for one in inputs]
    compiled = torch.compile(TRANSFORMS[transform](ours), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), TRANSFORMS[transform](theirs)(*inputs))


@pytest.mark.parametrize("transform", ["grad", "jvp"])
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_transforms_update_running_statistics_as_torch_s_do(norm, transform):
    def found(library):
        torch.manual_seed(0)
        x, weight, bias, running = torch.randn(3, 4, 4), torch.randn(4), torch.randn(4), [torch.zeros(4), torch.ones(4)]
        function = getattr(library, f"{norm}_norm")
        return TRANSFORMS[transform](lambda x, w, b: function(x, *running, w, b, True))(x, weight, bias), running

    torch.testing.assert_close(found(nn), found(torch.nn.functional))


def test_forward_mode():
    ours, theirs, (x, weight, bias) = case("batch", True)
    with forward_ad.dual_level():
        tangents = []
        for function in (ours, theirs):
            dual = forward_ad.make_dual(x.detach(), torch.sin(x.detach()))
            tangents.append(forward_ad.unpack_dual(function(dual, weight.detach(), bias.detach())).tangent)
    torch.testing.assert_close(*tangents)


@pytest.mark.parametrize("run", ["auto", "simulator"])
@pytest.mark.parametrize(("norm", "own"), CASES)
def test_a_batch_of_gradients_at_once(norm, own, run):
    ours, theirs, inputs = case(norm, own, (3, 4, 4))
    grads = torch.randn(2, 3, 4, 4, dtype=inputs[0].dtype).transpose(-1, -2)
    with nn.engine(run):
        found = [
            torch.autograd.grad(function(*inputs), inputs, grads, is_grads_batched=True) for function in (ours, theirs)
        ]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
