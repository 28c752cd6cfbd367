"""A norm's forward that is recorded and has been checked goes straight to its replay; on a fake GPU that simulates."""

import gc
import sys
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
from engine.fake_driver import fake_driver
from engine.fake_torch import fake_backend
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import normlab
from normlab import nn
from normlab.host import replay
from normlab.nn import checks, functional

SHAPE = 3, 36


def calls_of(module, name, monkeypatch):
    """A list to which each call of a function adds its arguments."""
    given, function = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments: (given.append(arguments), function(*arguments))[1])
    return given


@pytest.fixture
def straight(monkeypatch):
    """A fake GPU 0, where CPU tensors lie; a function that says how many norms were checked since the last time."""
    library = fake_driver(monkeypatch)
    fake_backend(monkeypatch)
    count = calls_of(checks, "check", monkeypatch)

    def checked():
        done = len(count)
        count.clear()
        return done

    checked.library = library
    with nn.engine("simulator"):
        yield checked


def run(function, x, *rest):
    """Output and gradients."""
    given = [one.detach().clone().requires_grad_() for one in (x, *rest)]
    output = function(*given)
    output.backward(torch.ones_like(output))
    return [output.detach(), *(one.grad for one in given)]


def layer(memory_efficient):
    return lambda x, weight, bias: nn.layer_norm(x, (SHAPE[1],), weight, bias, 1e-5, memory_efficient)


def rms(memory_efficient):
    return lambda x, weight: nn.rms_norm(x, (SHAPE[1],), weight, 1e-5, memory_efficient)


def files_entered(call):
    """The files of normlab that a call runs code of, except for two that only the fake GPU needs.

    It has CPU tensors, whose engine is asked for, and its threads have no context.
    """
    folder, found = Path(normlab.__file__).parent, set()

    def note(frame, event, arg):
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(folder):
            found.add(Path(frame.f_code.co_filename).relative_to(folder).as_posix())

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found - {"nn/engines.py", "engine/launching/driver.py"}


def test_a_repeated_call_passes_through_few_files(straight):
    x, parameters = torch.randn(SHAPE), [torch.ones(SHAPE[1]), torch.zeros(SHAPE[1])]
    host = {"host/checks.py", "host/norms.py", "host/replay.py", "engine/launching/launch.py"}
    module = nn.FusedLayerNorm(SHAPE[1])
    straight.library.run = lambda *launch: None
    for _ in range(2):
        normlab.layer_norm_forward(x, SHAPE[1], *parameters)
        module(x)
    assert files_entered(lambda: normlab.layer_norm_forward(x, SHAPE[1], *parameters)) == host
    own = {f"nn/{name}.py" for name in ("modules", "functional", "private", "autograd")}
    assert files_entered(lambda: module(x)) == own | host - {"host/checks.py"}


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("norm", [layer, rms])
def test_from_the_third_call_on_nothing_is_checked_and_bits_are_the_same(straight, norm, memory_efficient):
    parameters = [torch.randn(SHAPE[1]) for _ in range(2 if norm is layer else 1)]
    x = torch.randn(SHAPE)
    first, second, third = (run(norm(memory_efficient), x, *parameters) for _ in range(3))
    assert straight() == 2  # the first makes the recording, the second passes it
    for one, other, another in zip(first, second, third, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, another)
    with torch.no_grad():
        assert torch.equal(norm(memory_efficient)(x, *parameters), first[0])
    others = [torch.randn_like(one) for one in (x, *parameters)]
    replayed = run(norm(memory_efficient), *others)
    assert straight() == 0
    replay._cached.clear()
    for one, other in zip(replayed, run(norm(memory_efficient), *others), strict=True):
        assert torch.equal(one, other)


def test_other_parameters_shapes_and_eps_are_noticed_after_right_calls_too(straight):
    x, one, other = torch.randn(SHAPE), torch.randn(SHAPE[1]), torch.randn(SHAPE[1])
    ways = (one, None), (None, other), (one, other), (None, None)
    for weight, bias in ways * 3 + tuple(way for way in ways for _ in range(5)) + ways:
        want = torch.nn.functional.layer_norm(x, SHAPE[1:], weight, bias)
        torch.testing.assert_close(layer(False)(x, weight, bias), want)
    want = torch.nn.functional.rms_norm(x, SHAPE[1:], one, 1e-5)
    for _ in range(5):
        torch.testing.assert_close(rms(False)(x, one), want)
    for shape, eps in [(SHAPE[1:], 1e-5)] * 5 + [(SHAPE[1:], 1.0), (SHAPE, 1e-5)]:
        want = torch.nn.functional.layer_norm(x, shape, eps=eps)
        torch.testing.assert_close(nn.layer_norm(x, shape, eps=eps), want)


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("norm", [layer, rms])
def test_a_second_derivative_does_not_take_the_first_one_s_kernels(straight, norm, memory_efficient):
    """Its gradient at the output comes with one at the invvar, of which the recorded kernels know nothing."""
    shapes = [SHAPE] + [SHAPE[1:]] * (2 if norm is layer else 1)
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    dy, v = torch.randn(SHAPE), torch.randn(SHAPE)

    def second(function):
        output = function(*given)
        (dx,) = torch.autograd.grad(output, given[:1], dy, create_graph=True)
        return torch.autograd.grad((dx * v).sum() + (output * v).sum(), given)

    for _ in range(4):
        run(norm(memory_efficient), *given)
    seconds = second(norm(memory_efficient))
    with nn.engine("auto"):
        expected = second(norm(memory_efficient))
    for one, other in zip(seconds, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_shape_that_cannot_be_hashed_is_one_like_others(straight):
    class Size(int):
        __hash__ = None

    x, weight, bias = torch.randn(SHAPE), torch.randn(SHAPE[1]), torch.randn(SHAPE[1])
    for _ in range(5):
        want = layer(False)(x, weight, bias)
        assert torch.equal(nn.layer_norm(x, (Size(SHAPE[1]),), weight, bias), want)


def test_a_recording_keeps_no_tensor_alive(straight):
    weight, bias = torch.randn(SHAPE[1]), torch.randn(SHAPE[1])
    given = []
    for _ in range(5):
        x = torch.randn(SHAPE, requires_grad=True)
        layer(False)(x, weight, bias).backward(torch.ones(SHAPE))
        given.append(weakref.ref(x))
    del x
    straight()  # forgets what was checked
    gc.collect()
    assert [one() for one in given] == [None] * 5


def test_mistakes_are_told_after_right_calls_too(straight):
    x, weight, bias = torch.randn(SHAPE), torch.randn(SHAPE[1]), torch.randn(SHAPE[1])
    for _ in range(4):
        layer(False)(x, weight, bias)
    for kind, text, wrong in [
        (RuntimeError, "expected input with shape", (x[:, :-1].contiguous(), weight, bias)),
        (RuntimeError, "Expected weight to be of same shape", (x, weight[:-1].clone(), bias)),
        (RuntimeError, "mixed dtype", (x, weight.double(), bias)),
        (RuntimeError, "expected scalar type", (x.bfloat16(), weight.float(), bias.bfloat16())),
        (TypeError, "must be Tensor, not list", (x, weight, [1.0])),
    ]:
        with pytest.raises(kind, match=text):
            layer(False)(*wrong)
    with pytest.raises(ValueError, match='False, True or "exact"'):
        layer("precise")(x, weight, bias)


def test_what_looks_on_is_noticed_after_right_calls_too(straight):
    x, weight, bias = torch.randn(SHAPE), torch.randn(SHAPE[1]), torch.randn(SHAPE[1])
    for _ in range(4):
        want = layer(False)(x, weight, bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(False)(x, weight, bias).dtype == torch.bfloat16
    got = torch.func.vmap(layer(False), in_dims=(0, None, None))(x[None], weight, bias)[0]
    torch.testing.assert_close(got, want)
    with forward_ad.dual_level():
        dual = layer(False)(forward_ad.make_dual(x, torch.ones_like(x)), weight, bias)
        assert forward_ad.unpack_dual(dual).tangent is not None
    for early in (False, True):
        graph = make_fx(layer(False), pre_dispatch=early)(x, weight, bias)
        torch.testing.assert_close(graph(-x, weight, bias), layer(False)(-x, weight, bias))
    assert layer(False)(x.requires_grad_(), weight, bias).requires_grad
    with torch.no_grad():
        assert not layer(False)(x, weight, bias).requires_grad
    assert functional._cached_launch(x, (SHAPE[1],), weight, bias, 1e-5, False)[0] is not None


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_what_looks_on_a_backward_is_noticed_after_right_calls_too(straight, memory_efficient):
    x, (grad, other) = torch.randn(SHAPE, requires_grad=True), torch.randn(2, *SHAPE)
    weight, bias = torch.randn(SHAPE[1], requires_grad=True), torch.randn(SHAPE[1])
    for _ in range(4):
        output = layer(memory_efficient)(x, weight, bias)
        want = torch.autograd.grad(output, (x, weight), grad, retain_graph=True)

    def backward(grad):
        return torch.autograd.grad(output, (x, weight), grad, retain_graph=True)

    both = torch.stack([grad, other])
    for early in (False, True):
        torch.testing.assert_close(make_fx(backward, pre_dispatch=early)(other)(grad), want)
    batched = partial(torch.autograd.grad, output, (x, weight), retain_graph=True, is_grads_batched=True)
    for several in (torch.func.vmap(backward)(both), batched(both)):
        torch.testing.assert_close(tuple(one[0] for one in several), want, rtol=1e-4, atol=1e-5)
    with forward_ad.dual_level():
        dual = backward(forward_ad.make_dual(grad, other))[0]
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, backward(other)[0], rtol=1e-4, atol=1e-5)
    with compiled_autograd._enable(partial(torch.compile, backend="eager", fullgraph=True)):
        torch.testing.assert_close(backward(grad), want)
    torch.compiler.reset()


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize(
    "unpack",
    [
        torch.Tensor.clone,
        lambda saved: saved.t().contiguous().t() if saved.dim() == 2 else saved.clone(),  # other strides
        lambda saved: torch.cat([saved.new_zeros(1), saved.flatten()])[1:].view(saved.shape),  # another alignment
    ],
)
def test_what_hooks_put_in_the_place_of_saved_tensors_is_read(straight, memory_efficient, unpack):
    given = torch.randn(SHAPE), torch.randn(SHAPE[1]), torch.randn(SHAPE[1])
    for _ in range(3):
        want = run(layer(memory_efficient), *given)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.clone(), unpack):
        got = run(layer(memory_efficient), *given)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_a_gradient_of_other_strides_alignment_or_dtype_is_read_as_it_is(straight, memory_efficient):
    leaves = [one.requires_grad_() for one in (torch.randn(SHAPE), torch.randn(SHAPE[1]), torch.randn(SHAPE[1]))]
    ones = torch.ones(SHAPE)
    for _ in range(3):
        want = torch.autograd.grad(layer(memory_efficient)(*leaves), leaves, ones)
    others = [
        torch.ones(()).expand(SHAPE),
        torch.ones(SHAPE[::-1]).t(),
        torch.ones(SHAPE[0] * SHAPE[1] + 1)[1:].view(SHAPE),
        torch.ones(SHAPE, dtype=torch.bfloat16),  # which autograd turns into the output's dtype
    ]
    for other in others:
        got = torch.autograd.grad(layer(memory_efficient)(*leaves), leaves, other)
        for one, another in zip(got, want, strict=True):
            torch.testing.assert_close(one, another)


@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_a_nested_tensor_comes_to_pytorch_s_norm_also_after_plain_ones(kind, straight):
    """The shortcut's test must not see it: it asks for strides, and what that throws ends the process."""
    norm = kind(SHAPE[1])
    for _ in range(4):
        norm(torch.randn(SHAPE))
    parts = [torch.randn(rows, SHAPE[1]) for rows in (2, 3)]
    nested = torch.nested.nested_tensor(parts)
    if kind is nn.FusedRMSNorm:
        with pytest.raises(RuntimeError, match="NestedTensorImpl"):  # as from torch.nn.RMSNorm
            norm(nested)
    else:
        for one, part in zip(norm(nested).unbind(), parts, strict=True):
            torch.testing.assert_close(one, norm(part))
