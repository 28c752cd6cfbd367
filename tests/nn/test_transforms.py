"""torch.func: every transform gives what it gives for PyTorch's norm."""

from functools import partial

import pytest
import torch
from nn.norms import MODES
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from normlab import nn

pytestmark = pytest.mark.usefixtures("forget_compiled")


def pairs(memory_efficient) -> list[tuple]:
    """(ours, PyTorch's) as functions of x, weight."""
    return [
        (
            lambda x, w: nn.layer_norm(x, 5, w, None, 1e-5, memory_efficient),
            lambda x, w: torch.nn.functional.layer_norm(x, (5,), w, None, 1e-5),
        ),
        (
            lambda x, w: nn.rms_norm(x, 5, w, 1e-5, memory_efficient),
            lambda x, w: torch.nn.functional.rms_norm(x, (5,), w, 1e-5),
        ),
    ]


def loss(function):
    return lambda x, w: (function(x, w) * torch.arange(5.0)).square().sum()


TRANSFORMS = {
    "grad": lambda f: grad(loss(f), argnums=(0, 1)),
    "grad of grad": lambda f: grad(lambda x, w: grad(loss(f))(x, w).square().sum(), argnums=1),
    "vmap over x": lambda f: vmap(f, in_dims=(0, None)),
    "vmap over x's second dimension": lambda f: lambda x, w: vmap(f, in_dims=(1, None))(torch.stack([x, -x]), w),
    "vmap over both": lambda f: lambda x, w: vmap(f)(x, w.expand(3, 5) * torch.arange(1.0, 4)[:, None]),
    "gradients per sample": lambda f: vmap(grad(loss(f), argnums=1), in_dims=(0, None)),
    "jacrev": lambda f: jacrev(f, argnums=1),
    "jacfwd": lambda f: jacfwd(f),
    "hessian": lambda f: hessian(loss(f), argnums=1),
    "jvp": lambda f: lambda x, w: jvp(f, (x, w), (torch.ones_like(x), w)),
}


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_gives_what_it_gives_for_torch_s_norm(transform, memory_efficient):
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5), torch.randn(5)
    for ours, theirs in pairs(memory_efficient):
        torch.testing.assert_close(transform(ours)(x, weight), transform(theirs)(x, weight), rtol=1e-4, atol=1e-4)


def test_functional_call_of_a_module():
    norm = nn.FusedLayerNorm(5, memory_efficient="exact")
    parameters = {name: torch.randn(5) for name, _ in norm.named_parameters()}
    x = torch.randn(3, 5)
    got = grad(lambda p: functional_call(norm, p, x).square().sum())(parameters)
    want = grad(lambda p: functional_call(torch.nn.LayerNorm(5), p, x).square().sum())(parameters)
    for name in parameters:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("memory_efficient", MODES)
def test_forward_mode_outside_torch_func(memory_efficient):
    x, weight, tangent = torch.randn(2, 5), torch.randn(5, requires_grad=True), torch.randn(2, 5)
    for ours, theirs in pairs(memory_efficient):
        with forward_ad.dual_level():
            got, want = (forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent), weight)) for f in (ours, theirs))
        torch.testing.assert_close(got.tangent, want.tangent)


def under(run, function):
    """As an engine, or the operators that graphs hold, run it."""
    if run == "operators":
        return torch.compile(function, backend="eager")

    def called(*args):
        with nn.engine(run):
            return function(*args)

    return called


every_run = pytest.mark.parametrize("run", ["auto", "simulator", "operators"])


@every_run
@pytest.mark.parametrize("memory_efficient", MODES)
def test_a_batch_of_gradients_at_once(memory_efficient, run):
    x, weight, grads = torch.randn(2, 5), torch.randn(5, requires_grad=True), torch.randn(3, 2, 5)
    for ours, theirs in pairs(memory_efficient):
        found = []
        for function in (ours, theirs):
            given = x.clone().requires_grad_()
            output = under(run, function)(given, weight)
            found.append(torch.autograd.grad(output, (given, weight), grads, retain_graph=True, is_grads_batched=True))
            found.append(vmap(partial(torch.autograd.grad, output, (given, weight)))(grads))
        for one in found[:-1]:
            torch.testing.assert_close(one, found[-1], rtol=1e-4, atol=1e-5)


@every_run
@pytest.mark.parametrize("memory_efficient", MODES)
def test_forward_mode_over_a_backward(memory_efficient, run):
    x, weight, (grad_output, tangent) = torch.randn(2, 5), torch.randn(5), torch.randn(2, 2, 5)
    for ours, theirs in pairs(memory_efficient):
        found = []
        for function in (ours, theirs):
            given = x.clone().requires_grad_()
            output = under(run, function)(given, weight)
            with forward_ad.dual_level():
                (dual,) = torch.autograd.grad(output, given, forward_ad.make_dual(grad_output, tangent))
                found.append(forward_ad.unpack_dual(dual).tangent)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
