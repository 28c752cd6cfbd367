"""Derivatives, once and twice, what is saved for them, and what must be noticed."""

import weakref

import pytest
import torch
from nn.norms import MODES
from torch.utils.checkpoint import checkpoint

from normlab import nn

AFFINE = [("layer", ""), ("layer", "w"), ("layer", "b"), ("layer", "wb"), ("rms", ""), ("rms", "w")]


def drawn(kind: str, affine: str, memory_efficient, shape=(2, 2), leading=(2,)) -> tuple:
    """(function of (x, *parameters), those in float64). Exact: with columns at risk, one of them of weight 0."""
    torch.manual_seed(0)
    x = torch.randn(*leading, *shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape, dtype=torch.float64).abs() + 0.5
    bias = torch.randn(shape, dtype=torch.float64)
    if memory_efficient == "exact":
        weight.view(-1)[1], weight.view(-1)[2], bias.view(-1)[3] = 0, 1e-9, 30
    given = {"w": weight.requires_grad_(), "b": bias.requires_grad_()}

    def function(x, *parameters):
        parameter = dict(zip(affine, parameters, strict=True))
        if kind == "rms":
            return nn.rms_norm(x, shape, parameter.get("w"), 1e-5, memory_efficient)
        return nn.layer_norm(x, shape, parameter.get("w"), parameter.get("b"), 1e-5, memory_efficient)

    return function, (x, *(given[name] for name in affine))


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize(("kind", "affine"), AFFINE)
def test_gradcheck_and_gradgradcheck(kind, affine, memory_efficient):
    function, inputs = drawn(kind, affine, memory_efficient)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("memory_efficient", MODES)
def test_a_gradient_that_can_be_differentiated_is_the_same(memory_efficient):
    function, inputs = drawn("layer", "wb", memory_efficient)
    dy = torch.randn_like(inputs[0])
    once = torch.autograd.grad(function(*inputs), inputs, dy)
    again = torch.autograd.grad(function(*inputs), inputs, dy, create_graph=True)
    for one, other in zip(once, again, strict=True):
        torch.testing.assert_close(one, other.detach())


@pytest.mark.parametrize("memory_efficient", MODES)
def test_an_eps_beyond_float32_has_the_gradients_of_an_infinite_one(memory_efficient):
    def gradients(eps):
        x, dy, weight = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).unbind()
        given = [x.requires_grad_(), weight[0].clone().requires_grad_()]
        output = nn.layer_norm(x, (4,), given[1], None, eps, memory_efficient)
        return torch.autograd.grad(output, given, dy)

    torch.testing.assert_close(gradients(1e39), gradients(float("inf")), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("memory_efficient", [True, "exact"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_changed_output_is_noticed(kind, memory_efficient):
    function, inputs = drawn(kind, "w", memory_efficient)
    output = function(*inputs)
    with torch.no_grad():
        output.mul_(2)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        output.sum().backward()


def test_an_output_may_be_changed_in_place_where_the_input_is_saved():
    function, inputs = drawn("layer", "w", False)
    output = function(*inputs)
    with torch.no_grad():
        output.mul_(2)
    output.sum().backward()


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_the_input_is_kept_only_where_it_is_what_is_saved(kind, memory_efficient):
    torch.manual_seed(0)
    weight = torch.ones(8, requires_grad=True)
    x = torch.randn(4, 8)
    seen = weakref.ref(x)
    norm = {"rms": nn.rms_norm, "layer": nn.layer_norm}[kind]
    output = norm(x, 8, weight, memory_efficient=memory_efficient)
    del x
    assert (seen() is None) == bool(memory_efficient)
    output.sum().backward()


@pytest.mark.parametrize(("memory_efficient", "risky"), [(False, 0), (True, 0), ("exact", 0), ("exact", 3)])
def test_bytes_saved_beside_input_or_output(memory_efficient, risky):
    n1, n2 = 64, 32
    weight, bias = torch.ones(n2, requires_grad=True), torch.zeros(n2, requires_grad=True)
    with torch.no_grad():
        weight[:risky] = 0
    x = torch.randn(n1, n2, requires_grad=True)
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = nn.layer_norm(x, n2, weight, bias, 1e-5, memory_efficient)
    for free in (x, output, weight, bias):
        saved.pop(free.untyped_storage().data_ptr(), None)
    statistics = 4 * n1 * (1 if memory_efficient else 2)
    assert sum(saved.values()) == statistics + risky * (4 * n1 + 4)
    output.sum().backward()


@pytest.mark.parametrize("memory_efficient", MODES)
def test_frozen_parameters_and_frozen_inputs_get_no_gradient(memory_efficient):
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8)
    bias = torch.randn(8, requires_grad=True)
    nn.layer_norm(x, 8, weight, bias, 1e-5, memory_efficient).sum().backward()
    assert weight.grad is None
    assert x.grad is not None
    nn.layer_norm(x.detach(), 8, weight, bias, 1e-5, memory_efficient).sum().backward()
    torch.testing.assert_close(bias.grad, torch.full((8,), 8.0))


def test_nothing_is_recorded_without_gradients():
    x, weight = torch.randn(4, 8), torch.randn(8, requires_grad=True)
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            assert nn.layer_norm(x, 8, weight, memory_efficient="exact").grad_fn is None


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_changes_nothing(memory_efficient, use_reentrant):
    torch.manual_seed(0)
    block = torch.nn.Sequential(
        torch.nn.Linear(8, 8), nn.FusedLayerNorm(8, memory_efficient=memory_efficient), torch.nn.Linear(8, 8)
    )
    x = torch.randn(4, 8, requires_grad=True)
    want = torch.autograd.grad(block(x).square().sum(), (x, *block.parameters()))
    if use_reentrant:  # gives gradients only to .grad
        checkpoint(block, x, use_reentrant=True).square().sum().backward()
        got = [leaf.grad for leaf in (x, *block.parameters())]
    else:
        got = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).square().sum(), (x, *block.parameters()))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("memory_efficient", MODES)
def test_a_gradient_of_one_thing_at_a_time_and_of_expanded_tensors(memory_efficient):
    function, inputs = drawn("layer", "wb", memory_efficient)
    output = function(*inputs)
    everything = torch.autograd.grad(output.sum(), inputs, retain_graph=True)  # the gradient of a sum is expanded
    for leaf, want in zip(inputs, everything, strict=True):
        torch.testing.assert_close(torch.autograd.grad(output.sum(), leaf, retain_graph=True)[0], want)
